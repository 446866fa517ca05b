#include "experiments/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/quantity.h"
#include "hierarchy/chunks.h"
#include "hierarchy/cost.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

PlanOptions options(const std::string& params, int ranks, const std::string& memory = "") {
  PlanOptions o;
  o.params = params;
  o.ranks = ranks;
  o.rank_memory = memory;
  return o;
}

std::string run(const PlanOptions& o) {
  std::ostringstream out;
  EXPECT_EQ(plan_command(o, out), 0);
  return out.str();
}

template <class F>
std::string usage_error(F call) {
  try {
    call();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(Quantity, CountsAndBytes) {
  EXPECT_EQ(parse_count("7.5e9", "x"), 7'500'000'000u);
  EXPECT_EQ(parse_count("7.5B", "x"), 7'500'000'000u);
  EXPECT_EQ(parse_count("124M", "x"), 124'000'000u);
  EXPECT_EQ(parse_count("1", "x"), 1u);
  EXPECT_EQ(parse_count("0.7k", "x"), 700u);
  EXPECT_EQ(parse_bytes("32GB", "x"), 32'000'000'000u);
  EXPECT_EQ(parse_bytes("32 GB", "x"), 32'000'000'000u);
  EXPECT_EQ(parse_bytes("80e9", "x"), 80'000'000'000u);
  EXPECT_EQ(parse_bytes("1.5GiB", "x"), 3u << 29);
  EXPECT_EQ(parse_bytes("512B", "x"), 512u);
  for (const char* bad :
       {"", "GB", "-1", "0", "0.5", "nan", "inf", "1e30", "3X", "3 4", "3GB "}) {
    EXPECT_THAT(usage_error([&] { parse_bytes(bad, "--size"); }), HasSubstr("[--size]")) << bad;
  }
  EXPECT_THAT(usage_error([] { parse_count("32GB", "--params"); }), HasSubstr("'32GB'"));
}

std::vector<std::string> names(const Plan& plan) {
  std::vector<std::string> out;
  for (const PlanRow& row : plan.rows) out.push_back(row.name);
  return out;
}

/// Figure 1 of the ZeRO paper.
TEST(Plan, ZeroPaperExample) {
  const Plan plan = make_plan(options("7.5e9", 64, "32GB"));
  EXPECT_THAT(names(plan), ElementsAre("0", "1", "1 all-reduce", "2", "3", "3 + hpZ"));
  const double totals[] = {120, 31.40625, 31.40625, 16.640625, 1.875, 3.75};
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(plan.rows[i].memory.total()) / 1e9, totals[i], 1e-6) << i;
    EXPECT_EQ(plan.rows[i].fits, i > 0);
  }
  EXPECT_EQ(plan.lowest_stage, 1);
  EXPECT_EQ(plan.ranks_per_node, 8);
  EXPECT_EQ(make_plan(options("7.5e9", 64, "31GB")).lowest_stage, 2);
  EXPECT_EQ(make_plan(options("7.5e9", 64, "16.6GB")).lowest_stage, 3);
  EXPECT_EQ(make_plan(options("7.5e9", 64, "1.8GB")).lowest_stage, -1);
  EXPECT_EQ(make_plan(options("7.5e9", 64)).lowest_stage, -1);
}

TEST(Plan, TwentyByteLayout) {
  PlanOptions o = options("1000", 8);
  o.layout = 20;
  const Plan plan = make_plan(o);
  EXPECT_EQ(plan.rows[0].memory.total(), 20'000u);
  EXPECT_EQ(plan.rows[3].memory.grads, 6u * 125);
}

TEST(Plan, RanksForStage3AreWholeNodesThatFit) {
  PlanOptions o = options("175B", 8, "80GB");
  Plan plan = make_plan(o);
  EXPECT_EQ(plan.lowest_stage, -1);
  EXPECT_EQ(plan.ranks_for_stage3, 40u);  // 16 * 175 / 80 = 35.
  o.ranks = 40;
  EXPECT_EQ(make_plan(o).lowest_stage, 3);
  o.ranks = 32;
  EXPECT_EQ(make_plan(o).lowest_stage, -1);
  EXPECT_EQ(make_plan(options("10", 1, "15B")).ranks_for_stage3, 0u);
}

/// Traffic at N ranks, Psi divisible by N: multiples of (N-1)/N * Psi * 2 bytes.
TEST(Plan, TrafficOfTheTextbook) {
  PlanOptions o = options("64000", 64);
  const std::uint64_t unit = 2 * 63'000;
  const auto sent = [&](int gas) {
    o.gas = gas;
    std::vector<std::uint64_t> rings;
    for (const PlanRow& row : make_plan(o).rows) {
      if (row.policy.secondary == 0) {
        EXPECT_EQ(row.traffic.rank_max % unit, 0u);
      }
      rings.push_back(row.traffic.net_node_max / unit);
      EXPECT_EQ(row.traffic.net_sum, 8 * row.traffic.net_node_max);
    }
    return rings;
  };
  EXPECT_THAT(sent(1), ElementsAre(2, 2, 3, 2, 3, 2));
  EXPECT_THAT(sent(4), ElementsAre(2, 2, 3, 4 + 1, 3 * 4, 4 + 1));
}

/// The rings walked message by message: chunk c of a reduce-scatter starts behind its owner and
/// ends there, chunk c of an all-gather starts at its owner.
PlanTraffic walked(const zero::StagePolicy& p, std::uint64_t params, int ranks, int node,
                   int gas) {
  const hierarchy::ChunkMap map{params, ranks};
  const auto topology = hierarchy::Topology::two_level(ranks / node, node);
  std::vector<std::uint64_t> inside(static_cast<std::size_t>(ranks)), net = inside;
  const auto send = [&](int from, int to, std::uint64_t elements) {
    if (from == to) return;
    auto& link = topology.link_class(from, to) == 0 ? inside : net;
    link[static_cast<std::size_t>(from)] += 2 * elements;
  };
  const auto reduce_scatter = [&] {
    for (int c = 0; c < ranks; ++c) {
      for (int hop = 1; hop < ranks; ++hop) {
        send((c + hop) % ranks, (c + hop + 1) % ranks, map.size(c));
      }
    }
  };
  const auto all_gather = [&](int group) {
    for (int first = 0; first < ranks; first += group) {
      for (int c = 0; c < group; ++c) {
        for (int hop = 0; hop < group - 1; ++hop) {
          send(first + (c + hop) % group, first + (c + hop + 1) % group,
               hierarchy::shard_elems(map, group, c));
        }
      }
    }
  };
  for (int micro = 0; micro < gas; ++micro) {
    const bool last = micro == gas - 1;
    if (p.params > 1) {
      all_gather(p.secondary > 0 && micro > 0 ? p.secondary : ranks);
      all_gather(p.secondary > 0 ? p.secondary : ranks);
    }
    if (p.stage >= 2 || last) reduce_scatter();
    if (p.all_reduce && last) all_gather(ranks);
  }
  if (p.stage == 1 || p.stage == 2) all_gather(ranks);
  PlanTraffic t;
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    t.rank_max = std::max(t.rank_max, inside[i] + net[i]);
    t.node_rank_max = std::max(t.node_rank_max, inside[i]);
    t.net_rank_max = std::max(t.net_rank_max, net[i]);
    t.net_sum += net[i];
    if (r % node == node - 1) {
      std::uint64_t out = 0;
      for (int j = r - node + 1; j <= r; ++j) out += net[static_cast<std::size_t>(j)];
      t.net_node_max = std::max(t.net_node_max, out);
    }
  }
  return t;
}

TEST(Plan, ClosedFormulasAreTheWalkedRings) {
  const std::vector<std::pair<int, int>> clusters = {{1, 1}, {2, 1}, {2, 2}, {6, 3},
                                                     {8, 2}, {8, 4}, {12, 4}};
  for (auto [ranks, node] : clusters) {
    for (const char* params : {"1", "3", "97", "1000"}) {
      for (int gas : {1, 3}) {
        PlanOptions o = options(params, ranks);
        o.ranks_per_node = node;
        o.gas = gas;
        const Plan plan = make_plan(o);
        for (const PlanRow& row : plan.rows) {
          SCOPED_TRACE(row.name + " N " + std::to_string(ranks) + " L " + std::to_string(node) +
                       " params " + params + " gas " + std::to_string(gas));
          const PlanTraffic expected = walked(row.policy, plan.params, ranks, node, gas);
          EXPECT_EQ(row.traffic.rank_max, expected.rank_max);
          EXPECT_EQ(row.traffic.node_rank_max, expected.node_rank_max);
          EXPECT_EQ(row.traffic.net_rank_max, expected.net_rank_max);
          EXPECT_EQ(row.traffic.net_node_max, expected.net_node_max);
          EXPECT_EQ(row.traffic.net_sum, expected.net_sum);
        }
      }
    }
  }
}

/// The collectives' own price list says the same.
TEST(Plan, RingsCostWhatTheCollectivesSay) {
  for (auto [ranks, node] : {std::pair{8, 4}, {6, 3}, {12, 2}}) {
    const auto topology = hierarchy::Topology::two_level(ranks / node, node);
    const hierarchy::CostTensor tensor{.numel = 1001, .dtype = quant::Dtype::kBF16};
    const hierarchy::CallOptions ring{.algorithm = hierarchy::Algorithm::kRing};
    const zero::StagePolicy stage2 = zero::make_policy({.stage = 2}, ranks);
    const PlanTraffic t = ring_traffic(stage2, tensor.numel, topology, 1);
    std::uint64_t rank_max = 0, net_sum = 0;
    for (int r = 0; r < ranks; ++r) {
      hierarchy::Cost cost = hierarchy::all_gather_cost(topology, r, ring, {&tensor, 1});
      cost += hierarchy::reduce_scatter_cost(topology, r, ring, {.wire = quant::Dtype::kBF16},
                                             {&tensor, 1});
      rank_max = std::max(rank_max, cost.total().bytes.total());
      if (cost.by_link.count(1) > 0) net_sum += cost.by_link.at(1).bytes.total();
    }
    EXPECT_EQ(t.rank_max, rank_max);
    EXPECT_EQ(t.net_sum, net_sum);
  }
}

TEST(Plan, HpzNeedsNodesOfSeveralRanks) {
  PlanOptions o = options("1e6", 8);
  EXPECT_EQ(make_plan(o).rows.size(), 5u);  // One node.
  o.ranks_per_node = 1;
  EXPECT_EQ(make_plan(o).rows.size(), 5u);
  o.ranks_per_node = 4;
  EXPECT_EQ(make_plan(o).rows.back().policy.secondary, 4);
}

TEST(Plan, TextIsAnAlignedTable) {
  const std::string text = run(options("7.5e9", 64, "32GB"));
  EXPECT_THAT(text, HasSubstr("7.5B parameters on 64 ranks (8 nodes of 8), 16 bytes"));
  EXPECT_THAT(text, HasSubstr("Lowest stage that fits 32 GB a rank: stage 1."));
  EXPECT_THAT(text, HasSubstr("flat rings"));
  std::istringstream lines(text);
  std::string line;
  std::vector<std::size_t> lengths;
  while (std::getline(lines, line)) {
    EXPECT_LE(line.size(), 100u);
    if (line.starts_with("0 ") || line.starts_with("1 ") || line.starts_with("2 ") ||
        line.starts_with("3 ") || line.starts_with("stage ") || line.starts_with("---")) {
      lengths.push_back(line.size());
    }
  }
  EXPECT_THAT(lengths, testing::AllOf(testing::SizeIs(8), testing::Each(lengths[0])));
  EXPECT_THAT(text, HasSubstr("\n2              15.00   0.23       1.41     -   16.64    yes"));
}

TEST(Plan, TextWithoutMemoryOrWithTooLittle) {
  EXPECT_THAT(run(options("124M", 4)), testing::Not(HasSubstr("fits")));
  EXPECT_THAT(
      run(options("175B", 8, "80GB")),
      HasSubstr("No stage fits 80 GB a rank with 8 ranks; stage 3 fits from 40 ranks on."));
}

TEST(Plan, JsonHasExactBytes) {
  PlanOptions o = options("7.5e9", 64, "32GB");
  o.json = true;
  const Json json = Json::parse(run(o));
  EXPECT_EQ(json["params"], 7'500'000'000u);
  EXPECT_EQ(json["algorithm"], "ring");
  EXPECT_EQ(json["nodes"], 8);
  EXPECT_EQ(json["lowest_stage_that_fits"], 1);
  ASSERT_EQ(json["stages"].size(), 6u);
  const Json& stage3 = json["stages"][4];
  EXPECT_EQ(stage3["stage"], 3);
  EXPECT_EQ(stage3["memory_per_rank"]["total"], 1'875'000'000u);
  EXPECT_EQ(stage3["memory_per_rank"]["optimizer"], 1'406'250'000u);
  EXPECT_EQ(stage3["fits"], true);
  EXPECT_EQ(stage3["traffic_per_step"]["net"]["bytes_out_max_node"], 44'296'875'000u);
  EXPECT_EQ(json["stages"][5]["secondary"], 8);
  o.rank_memory = "";
  const Json unasked = Json::parse(run(o));
  EXPECT_TRUE(unasked["lowest_stage_that_fits"].is_null());
  EXPECT_TRUE(unasked["stages"][0]["fits"].is_null());
}

TEST(Plan, ErrorsNameTheOption) {
  const auto error = [](auto change) {
    PlanOptions o = options("1e9", 64, "32GB");
    change(o);
    return usage_error([&] { make_plan(o); });
  };
  EXPECT_THAT(error([](auto& o) { o.params = "many"; }), HasSubstr("[--params]"));
  EXPECT_THAT(error([](auto& o) { o.ranks = 0; }), HasSubstr("[--ranks]"));
  EXPECT_THAT(error([](auto& o) { o.rank_memory = "big"; }), HasSubstr("[--rank-memory]"));
  EXPECT_THAT(error([](auto& o) { o.ranks_per_node = 7; }), HasSubstr("divisor of the 64"));
  EXPECT_THAT(error([](auto& o) { o.ranks_per_node = -8; }), HasSubstr("[--ranks-per-node]"));
  EXPECT_THAT(error([](auto& o) { o.layout = 18; }), HasSubstr("[--layout]"));
  EXPECT_THAT(error([](auto& o) { o.gas = 0; }), HasSubstr("[--gas]"));
  EXPECT_THAT(error([](auto& o) { o.ranks = 1 << 20; }), HasSubstr("16384"));
}

}  // namespace
}  // namespace zeropp::experiments
