#include "experiments/time_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "quant/error.h"

namespace zeropp::experiments {
namespace {

using hierarchy::Algorithm;
using hierarchy::Ledger;
using hierarchy::Phase;
using hierarchy::Topology;
using hierarchy::TrafficKey;
using quant::Role;
using testing::HasSubstr;

ClusterLinks links(std::vector<Link> levels) {
  return {
      .name = "test", .base_us = 100, .direct_efficiency = 0.5, .levels = std::move(levels)};
}

TrafficKey key(int link, Algorithm algorithm = Algorithm::kRing, Phase phase = Phase::kForward,
               Role role = Role::kWeight) {
  TrafficKey k;
  k.link = link;
  k.call.algorithm = algorithm;
  k.call.phase = phase;
  k.call.role = role;
  return k;
}

void message(Ledger& from, Ledger& to, const TrafficKey& k, std::uint64_t bytes) {
  from.sent(k, {.payload = bytes / 2, .scale = bytes - bytes / 2});
  to.received(k, bytes);
}

double communication(const Topology& topology, const ClusterLinks& l,
                     const std::vector<Ledger>& ranks) {
  return model_step_time(topology, l, {.ranks = ranks}).exposed_communication;
}

TEST(TimeModel, LatencyAndBandwidthOfTheBusiestRank) {
  const Topology topology = Topology::two_level(1, 2);
  const ClusterLinks l = links({{.bandwidth_gbs = 2, .latency_us = 10}, {.bandwidth_gbs = 1}});
  std::vector<Ledger> ranks(2);
  message(ranks[0], ranks[1], key(0), 4'000'000'000);
  message(ranks[0], ranks[1], key(0), 2'000'000'000);
  message(ranks[1], ranks[0], key(0), 1'000'000'000);
  // 6 GB at 2 GB/s and two messages; the other direction is free (full duplex).
  EXPECT_DOUBLE_EQ(communication(topology, l, ranks), 3 + 20e-6);
}

TEST(TimeModel, NetworkCardsAreSharedByTheNode) {
  const Topology topology = Topology::two_level(2, 2);
  const ClusterLinks l =
      links({{.bandwidth_gbs = 1000}, {.bandwidth_gbs = 1, .latency_us = 5}});
  std::vector<Ledger> ranks(4);
  message(ranks[0], ranks[2], key(1), 1'000'000'000);
  message(ranks[1], ranks[3], key(1), 2'000'000'000);
  // 3 GB leave node 0 together; each rank waits for one message.
  EXPECT_DOUBLE_EQ(communication(topology, l, ranks), 3 + 5e-6);
}

TEST(TimeModel, LevelsAddUpOnOneRank) {
  const Topology topology = Topology::two_level(2, 2);
  const ClusterLinks l = links({{.bandwidth_gbs = 10}, {.bandwidth_gbs = 1}});
  std::vector<Ledger> ranks(4);
  message(ranks[0], ranks[1], key(0), 5'000'000'000);
  message(ranks[2], ranks[0], key(1), 1'000'000'000);
  EXPECT_DOUBLE_EQ(communication(topology, l, ranks), 0.5 + 1.0);
}

TEST(TimeModel, ReceiversCanBeTheBottleneck) {
  const Topology topology = Topology::two_level(3, 1);
  const ClusterLinks l = links({{.bandwidth_gbs = 10}, {.bandwidth_gbs = 1}});
  std::vector<Ledger> ranks(3);
  message(ranks[0], ranks[2], key(1), 1'000'000'000);
  message(ranks[1], ranks[2], key(1), 1'000'000'000);
  EXPECT_DOUBLE_EQ(communication(topology, l, ranks), 2);
}

TEST(TimeModel, DirectExchangesAcrossNodesReachLess) {
  const Topology topology = Topology::two_level(2, 2);
  const ClusterLinks l = links({{.bandwidth_gbs = 1}, {.bandwidth_gbs = 1}});
  const auto seconds = [&](int link, Algorithm algorithm) {
    std::vector<Ledger> ranks(4);
    message(ranks[0], ranks[link == 0 ? 1 : 2], key(link, algorithm), 1'000'000'000);
    return communication(topology, l, ranks);
  };
  for (Algorithm a : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
    EXPECT_DOUBLE_EQ(seconds(1, a), 2);
    EXPECT_DOUBLE_EQ(seconds(0, a), 1);
  }
  EXPECT_DOUBLE_EQ(seconds(1, Algorithm::kRing), 1);
  EXPECT_DOUBLE_EQ(seconds(1, Algorithm::kNative), 1);
}

TEST(TimeModel, OnlyTheStepCounts) {
  const Topology topology = Topology::two_level(1, 2);
  const ClusterLinks l = links({{.bandwidth_gbs = 1}, {.bandwidth_gbs = 1}});
  std::vector<Ledger> ranks(2);
  for (Phase phase : {Phase::kInit, Phase::kEval, Phase::kCheckpoint, Phase::kOther}) {
    message(ranks[0], ranks[1], key(0, Algorithm::kRing, phase), 1'000'000'000);
  }
  message(ranks[0], ranks[1], key(0, Algorithm::kRing, Phase::kStep, Role::kControl),
          1'000'000'000);
  EXPECT_EQ(communication(topology, l, ranks), 0);
  for (Phase phase : {Phase::kForward, Phase::kBackward, Phase::kStep}) {
    message(ranks[0], ranks[1], key(0, Algorithm::kRing, phase, Role::kGradient),
            1'000'000'000);
  }
  EXPECT_DOUBLE_EQ(communication(topology, l, ranks), 3);
}

TEST(TimeModel, StepsMathAndCollectives) {
  const Topology topology = Topology::two_level(1, 2);
  const ClusterLinks l = links({{.bandwidth_gbs = 1}, {.bandwidth_gbs = 1}});
  std::vector<Ledger> ranks(2);
  message(ranks[0], ranks[1], key(0), 4'000'000'000);
  const TimeModel time = model_step_time(
      topology, l,
      {.ranks = ranks, .steps = 4, .collectives_per_step = 1000, .math_seconds = 0.25});
  EXPECT_DOUBLE_EQ(time.exposed_communication, 1 + 0.1);
  EXPECT_DOUBLE_EQ(time.total, 1.35);
  EXPECT_EQ(time.cluster, "test");
}

/// One ring all-gather over 2 nodes of 8: clusters.md's formula
/// hops * latency + bytes * (N-1)/N / bandwidth, at the rank that crosses.
TEST(TimeModel, RingOverTheNetwork) {
  const Topology topology = Topology::two_level(2, 8);
  const ClusterLinks l = *cluster_links(topology, "dgx-a100");
  constexpr std::uint64_t chunk = 100'000'000;
  std::vector<Ledger> ranks(16);
  for (int r = 0; r < 16; ++r) {
    const int next = (r + 1) % 16;
    for (int hop = 0; hop < 15; ++hop) {
      message(ranks[static_cast<std::size_t>(r)], ranks[static_cast<std::size_t>(next)],
              key(topology.link_class(r, next)), chunk);
    }
  }
  // A crossing rank sends over the network (15 x 14 us, 1.5 GB at 188 GB/s) and receives
  // inside.
  const double net = 15 * 14e-6 + 1.5 / 188;
  const double inside = 15 * 3.4e-6 + 1.5 / 232;
  EXPECT_NEAR(communication(topology, l, ranks), net + inside, 1e-12);
}

TEST(TimeModel, RefusesWhatDoesNotMatch) {
  const Topology topology = Topology::two_level(1, 2);
  const ClusterLinks l = links({{.bandwidth_gbs = 1}, {.bandwidth_gbs = 1}});
  std::vector<Ledger> ranks(2);
  EXPECT_THROW(model_step_time(topology, links({{.bandwidth_gbs = 1}}), {.ranks = ranks}),
               UsageError);
  EXPECT_THROW(model_step_time(topology, l, {.ranks = ranks, .steps = 0}), UsageError);
  ranks.pop_back();
  EXPECT_THROW(model_step_time(topology, l, {.ranks = ranks}), UsageError);
}

TEST(Clusters, PresetsArePlausibleAndSourced) {
  std::set<std::string> names;
  for (const ClusterPreset& c : cluster_presets()) {
    SCOPED_TRACE(c.name);
    EXPECT_TRUE(names.insert(c.name).second);
    EXPECT_FALSE(c.title.empty());
    EXPECT_FALSE(c.source.empty());
    EXPECT_GE(c.ranks_per_node, 1);
    for (const Link& link : {c.node, c.net}) {
      EXPECT_GT(link.bandwidth_gbs, 1);
      EXPECT_LT(link.bandwidth_gbs, 5000);
      EXPECT_GT(link.latency_us, 1);
      EXPECT_LT(link.latency_us, 100);
    }
  }
  EXPECT_EQ(names.count("dgx-a100"), 1u);
  EXPECT_EQ(names.count("hgx-h100"), 1u);
}

TEST(Clusters, PresetsFillLevels) {
  const auto two = *cluster_links(Topology::two_level(4, 8), "hgx-h100");
  ASSERT_EQ(two.levels.size(), 2u);
  EXPECT_EQ(two.name, "hgx-h100");
  EXPECT_EQ(two.levels[0].bandwidth_gbs, 364);
  EXPECT_EQ(two.levels[1].bandwidth_gbs, 376);
  EXPECT_EQ(two.base_us, 8.4);
  EXPECT_EQ(two.direct_efficiency, 0.75);
  // Three levels: a rack of 4 nodes has four nodes' network cards.
  const Topology racks({{.name = "node", .fan_out = 8},
                        {.name = "rack", .fan_out = 4},
                        {.name = "net", .fan_out = 2}});
  EXPECT_EQ(cluster_links(racks, "hgx-h100")->levels[2].bandwidth_gbs, 4 * 376);
}

TEST(Clusters, OwnFiguresComeFirst) {
  const Topology own({{.name = "node", .fan_out = 2, .bandwidth_gbs = 50, .latency_us = 1},
                      {.name = "net", .fan_out = 2, .bandwidth_gbs = 5}});
  const auto alone = *cluster_links(own, "");
  EXPECT_EQ(alone.name, "config");
  EXPECT_EQ(alone.levels[0].latency_us, 1);
  EXPECT_EQ(alone.levels[1].bandwidth_gbs, 5);
  EXPECT_EQ(alone.levels[1].latency_us, 0);
  const auto mixed = *cluster_links(own, "dgx-a100");
  EXPECT_EQ(mixed.levels[1].bandwidth_gbs, 5);
  EXPECT_EQ(mixed.levels[1].latency_us, 14);
}

TEST(Clusters, NoneUnknownAndHalf) {
  EXPECT_FALSE(cluster_links(Topology::two_level(2, 2), "").has_value());
  try {
    cluster_links(Topology::two_level(2, 2), "dgx-z100");
    FAIL() << "an unknown preset was accepted";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("dgx-a100"), HasSubstr("'dgx-z100'")));
  }
  const Topology half(
      {{.name = "node", .fan_out = 2, .bandwidth_gbs = 50}, {.name = "net", .fan_out = 2}});
  EXPECT_THROW(cluster_links(half, ""), UsageError);
}

}  // namespace
}  // namespace zeropp::experiments
