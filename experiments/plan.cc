#include "experiments/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "experiments/quantity.h"
#include "hierarchy/chunks.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

constexpr std::uint64_t kWireBytes = 2;  // Weights and gradients travel in 16 bits.

/// How many rings of each kind one optimizer step runs.
struct Rings {
  std::uint64_t reduce_scatters = 0, gathers = 0, group_gathers = 0;
};

Rings rings_of(const zero::StagePolicy& p, int gas) {
  const auto micro = static_cast<std::uint64_t>(gas);
  Rings rings;
  rings.reduce_scatters = p.reduce_at == zero::ReduceAt::kBoundary ? 1 : micro;
  if (p.all_reduce) rings.gathers += rings.reduce_scatters;  // Its second half.
  if (p.gathers_at_step()) rings.gathers += 1;
  if (p.gathers_units()) rings.gathers += 2 * micro;
  if (p.secondary > 0) {
    rings.group_gathers = 2 * micro - 1;  // All but the first forward of the step.
    rings.gathers -= rings.group_gathers;
  }
  return rings;
}

zero::StateLayout state_layout(int layout) {
  zero::StateLayout states;
  if (layout == 20) {
    states.accum = quant::Dtype::kF32;
  } else if (layout != 16) {
    throw UsageError("--layout", "16 or 20 (bytes a parameter)", std::to_string(layout));
  }
  return states;
}

int node_size(const PlanOptions& o) {
  if (o.ranks < 1) throw UsageError("--ranks", "at least 1 rank", std::to_string(o.ranks));
  const int size = o.ranks_per_node == 0 ? std::min(8, o.ranks) : o.ranks_per_node;
  if (size < 1 || o.ranks % size != 0) {
    throw UsageError("--ranks-per-node", fmt::format("a divisor of the {} ranks", o.ranks),
                     fmt::format("{}", size));
  }
  return size;
}

std::vector<std::pair<std::string, zero::SchemeRequest>> schemes(int ranks, int node) {
  std::vector<std::pair<std::string, zero::SchemeRequest>> list = {
      {"0", {.stage = 0}},
      {"1", {.stage = 1}},
      {"1 all-reduce", {.stage = 1, .stage1_all_reduce = true}},
      {"2", {.stage = 2}},
      {"3", {.stage = 3}}};
  if (node > 1 && node < ranks) list.push_back({"3 + hpZ", {.stage = 3, .secondary = node}});
  return list;
}

/// Ranks, in whole nodes, from which on stage 3 fits: chunk * bytes a parameter <= memory.
std::uint64_t ranks_for_stage3(const Plan& plan) {
  const std::uint64_t chunk = plan.rank_memory / static_cast<std::uint64_t>(plan.layout);
  if (chunk == 0) return 0;
  const auto node = static_cast<std::uint64_t>(plan.ranks_per_node);
  const std::uint64_t ranks = (plan.params + chunk - 1) / chunk;
  return (ranks + node - 1) / node * node;
}

}  // namespace

PlanTraffic ring_traffic(const zero::StagePolicy& policy, std::uint64_t params,
                         const hierarchy::Topology& topology, int gas) {
  const int ranks = topology.ranks(), node = topology.group_size(0);
  const hierarchy::ChunkMap map{params, ranks};
  const Rings rings = rings_of(policy, gas);
  PlanTraffic t;
  for (int first = 0; first < ranks; first += node) {
    std::uint64_t out = 0;
    for (int r = first; ranks > 1 && r < first + node; ++r) {
      const int next = (r + 1) % ranks;
      const std::uint64_t world = rings.reduce_scatters * (params - map.size(r)) +
                                  rings.gathers * (params - map.size(next));
      std::uint64_t group = 0;
      if (rings.group_gathers > 0) {
        const int s = policy.secondary;
        group = rings.group_gathers *
                (params - hierarchy::shard_elems(map, s, r - r % s + (r + 1) % s));
      }
      const bool across = topology.link_class(r, next) > 0;
      const std::uint64_t inside = kWireBytes * (group + (across ? 0 : world));
      const std::uint64_t net = kWireBytes * (across ? world : 0);
      t.rank_max = std::max(t.rank_max, inside + net);
      t.node_rank_max = std::max(t.node_rank_max, inside);
      t.net_rank_max = std::max(t.net_rank_max, net);
      out += net;
    }
    t.net_node_max = std::max(t.net_node_max, out);
    t.net_sum += out;
  }
  return t;
}

Plan make_plan(const PlanOptions& options) {
  Plan plan;
  plan.ranks = options.ranks;
  plan.ranks_per_node = node_size(options);
  plan.layout = options.layout;
  plan.gas = options.gas;
  plan.params = parse_count(options.params, "--params");
  if (!options.rank_memory.empty()) {
    plan.rank_memory = parse_bytes(options.rank_memory, "--rank-memory");
  }
  if (options.gas < 1) throw UsageError("--gas", "at least 1", std::to_string(options.gas));
  const zero::StateLayout layout = state_layout(options.layout);
  const auto topology =
      hierarchy::Topology::two_level(plan.ranks / plan.ranks_per_node, plan.ranks_per_node);
  for (const auto& [name, request] : schemes(plan.ranks, plan.ranks_per_node)) {
    PlanRow row;
    row.name = name;
    row.policy = zero::make_policy(request, plan.ranks);
    row.memory = zero::state_bytes(row.policy, layout, plan.params, plan.ranks, 0);
    row.traffic = ring_traffic(row.policy, plan.params, topology, plan.gas);
    row.fits = plan.rank_memory > 0 && row.memory.total() <= plan.rank_memory;
    if (row.fits && plan.lowest_stage < 0) plan.lowest_stage = row.policy.stage;
    plan.rows.push_back(std::move(row));
  }
  if (plan.rank_memory > 0) plan.ranks_for_stage3 = ranks_for_stage3(plan);
  return plan;
}

int plan_command(const PlanOptions& options, std::ostream& out) {
  const Plan plan = make_plan(options);
  out << (options.json ? plan_json(plan) : plan_text(plan)) << std::flush;
  return 0;
}

}  // namespace zeropp::experiments
