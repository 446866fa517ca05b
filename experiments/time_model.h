#pragma once

#include <span>
#include <string>

#include "experiments/clusters.h"
#include "hierarchy/ledger.h"
#include "hierarchy/topology.h"

namespace zeropp::experiments {

/// A modelled optimizer step, in seconds. An estimate from counted messages, never a
/// measurement.
struct TimeModel {
  double total = 0;                  ///< math + exposed communication.
  double exposed_communication = 0;  ///< All of it: the model overlaps nothing.
  std::string cluster;
};

struct StepLoad {
  std::span<const hierarchy::Ledger> ranks;  ///< One a rank, in rank order.
  double steps = 1;                          ///< Optimizer steps that the ledgers cover.
  double collectives_per_step = 0;           ///< Each costs the links' base_us.
  double math_seconds = 0;                   ///< Forward, backward and optimizer of one step.
};

/// What the busiest rank spends on communication: for every level of links
///
///   messages of the rank * latency + bytes / bandwidth
///
/// where bytes are those of all ranks that share the link (level 0: the rank alone; level 1:
/// its node, whose network cards are one link; and so on), the larger of sent and received, and
/// direct exchanges (all-to-all, hierarchical) across nodes get `direct_efficiency` of the
/// bandwidth. Messages of evaluation, checkpoints and the role `control` do not count.
/// UsageError: not one ledger a rank, steps <= 0, or links of another number of levels.
TimeModel model_step_time(const hierarchy::Topology& topology, const ClusterLinks& links,
                          const StepLoad& load);

}  // namespace zeropp::experiments
