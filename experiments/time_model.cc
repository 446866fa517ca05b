#include "experiments/time_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "quant/error.h"

namespace zeropp::experiments {
namespace {

using hierarchy::Algorithm;
using hierarchy::Phase;

bool in_step(const hierarchy::CallInfo& call) {
  const bool training = call.phase == Phase::kForward || call.phase == Phase::kBackward ||
                        call.phase == Phase::kStep;
  return training && call.role != quant::Role::kControl;
}

/// Use of the links of one level.
struct Load {
  std::vector<double> messages;             ///< By rank.
  std::vector<double> bytes_out, bytes_in;  ///< By member of the level's groups.
};

Load level_load(const hierarchy::Topology& topology, const ClusterLinks& links,
                std::span<const hierarchy::Ledger> ranks, int level) {
  const auto member_ranks = static_cast<std::size_t>(topology.group_size(level - 1));
  Load load{.messages = std::vector<double>(ranks.size()),
            .bytes_out = std::vector<double>(ranks.size() / member_ranks),
            .bytes_in = std::vector<double>(ranks.size() / member_ranks)};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const hierarchy::TrafficEntry& e : ranks[r].entries()) {
      if (e.key.link != level || !in_step(e.key.call)) continue;
      const Algorithm algorithm = e.key.call.algorithm;
      const bool direct =
          algorithm == Algorithm::kAllToAll || algorithm == Algorithm::kHierarchical;
      const double efficiency = direct && level > 0 ? links.direct_efficiency : 1;
      load.messages[r] += static_cast<double>(std::max(e.sent.messages, e.received.messages));
      load.bytes_out[r / member_ranks] +=
          static_cast<double>(e.sent.bytes.total()) / efficiency;
      load.bytes_in[r / member_ranks] +=
          static_cast<double>(e.received.bytes.total()) / efficiency;
    }
  }
  return load;
}

void check(const hierarchy::Topology& topology, const ClusterLinks& links,
           const StepLoad& load) {
  if (load.ranks.size() != static_cast<std::size_t>(topology.ranks())) {
    throw UsageError("time model", fmt::format("{} ledgers, one a rank", topology.ranks()),
                     std::to_string(load.ranks.size()));
  }
  if (links.levels.size() != static_cast<std::size_t>(topology.levels())) {
    throw UsageError("time model", fmt::format("links of {} levels", topology.levels()),
                     std::to_string(links.levels.size()));
  }
  if (!(load.steps > 0)) {
    throw UsageError("time model", "at least one step", fmt::format("{}", load.steps));
  }
}

}  // namespace

TimeModel model_step_time(const hierarchy::Topology& topology, const ClusterLinks& links,
                          const StepLoad& load) {
  check(topology, links, load);
  std::vector<double> seconds(load.ranks.size());
  for (int level = 0; level < topology.levels(); ++level) {
    const Link& link = links.levels[static_cast<std::size_t>(level)];
    const Load use = level_load(topology, links, load.ranks, level);
    const std::size_t member_ranks = load.ranks.size() / use.bytes_out.size();
    for (std::size_t r = 0; r < seconds.size(); ++r) {
      const std::size_t member = r / member_ranks;
      seconds[r] +=
          use.messages[r] * link.latency_us * 1e-6 +
          std::max(use.bytes_out[member], use.bytes_in[member]) / (link.bandwidth_gbs * 1e9);
    }
  }
  TimeModel time;
  time.cluster = links.name;
  time.exposed_communication = *std::max_element(seconds.begin(), seconds.end()) / load.steps +
                               load.collectives_per_step * links.base_us * 1e-6;
  time.total = load.math_seconds + time.exposed_communication;
  return time;
}

}  // namespace zeropp::experiments
