#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "hierarchy/topology.h"
#include "zero/policy.h"

namespace zeropp::experiments {

/// `zeropp plan`: what each ZeRO stage costs, from formulas alone.
struct PlanOptions {
  std::string params;  ///< Parameters, as typed: "7.5e9", "7.5B".
  int ranks = 0;
  std::string rank_memory;  ///< As typed: "32GB", "80e9"; empty: fitting is not asked for.
  int ranks_per_node = 0;   ///< 0 = 8, or all ranks if they are fewer.
  int layout = 16;          ///< Bytes a parameter: 16, or 20 with fp32 gradient accumulation.
  int gas = 1;              ///< Micro-steps a step.
  bool json = false;
};

/// Bytes sent in one optimizer step. Rings: the rank at the end of a node sends across nodes
/// all that it sends, the others inside the node.
struct PlanTraffic {
  std::uint64_t rank_max = 0;       ///< Busiest rank, over all its links.
  std::uint64_t node_rank_max = 0;  ///< Busiest rank on links inside a node.
  std::uint64_t net_rank_max = 0;   ///< Busiest rank on links between nodes.
  std::uint64_t net_node_max = 0;   ///< Out of the busiest node, all its ranks together.
  std::uint64_t net_sum = 0;        ///< Over all nodes.
};

struct PlanRow {
  std::string name;  ///< "0", "1", "1 all-reduce", "2", "3", "3 + hpZ".
  zero::StagePolicy policy;
  zero::StateBytes memory;  ///< Of rank 0, which holds the largest chunk.
  PlanTraffic traffic;
  bool fits = false;  ///< Only meaningful if rank_memory > 0.
};

struct Plan {
  std::uint64_t params = 0;
  std::uint64_t rank_memory = 0;  ///< Bytes; 0 = not asked for.
  int ranks = 1, ranks_per_node = 1, layout = 16, gas = 1;
  std::vector<PlanRow> rows;  ///< By stage; hpZ only where there are nodes of several ranks.
  int lowest_stage = -1;      ///< Lowest stage that fits; -1 = none, or not asked for.
  std::uint64_t ranks_for_stage3 =
      0;  ///< Ranks (whole nodes) at which stage 3 fits; 0 = never.
};

/// UsageError names the option. The parameters count as one tensor: every tensor of a real
/// model rounds its chunks up on its own, by less than one element a rank.
Plan make_plan(const PlanOptions& options);

/// A stage's traffic by the closed formulas of the flat ring, for N ranks and Psi elements of
/// 2 bytes in chunks of the owner map: in one reduce-scatter rank r sends all chunks but its
/// own, in one all-gather all but its successor's. hpZ: the first gather of a step goes over
/// the world and the others inside the group of `policy.secondary` ranks.
PlanTraffic ring_traffic(const zero::StagePolicy& policy, std::uint64_t params,
                         const hierarchy::Topology& topology, int gas);

std::string plan_text(const Plan& plan);
std::string plan_json(const Plan& plan);

/// Prints the plan as a table or as JSON. Returns the exit code.
int plan_command(const PlanOptions& options, std::ostream& out);

}  // namespace zeropp::experiments
