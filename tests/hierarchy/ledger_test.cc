#include "hierarchy/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "quant/error.h"
#include "tests/support/spawn.h"

namespace zeropp::hierarchy {
namespace {

TrafficKey key(int link, Collective c, std::uint8_t hop = 0,
               quant::Role role = quant::Role::kWeight) {
  return {.link = link,
          .call = {.collective = c,
                   .algorithm = Algorithm::kRing,
                   .phase = Phase::kForward,
                   .role = role,
                   .hop = hop}};
}

constexpr quant::WireBytes kBytes{.payload = 10, .scale = 4, .padding = 2, .exact = 0};

TEST(Ledger, BooksByKeySorted) {
  Ledger l;
  const std::vector<TrafficKey> keys = {
      key(1, Collective::kAllGather, 1), key(0, Collective::kReduceScatter),
      key(1, Collective::kAllGather, 0), key(0, Collective::kAllGather),
      key(0, Collective::kAllGather, 0, quant::Role::kControl)};
  for (int round = 0; round < 3; ++round) {
    for (const TrafficKey& k : keys) {
      l.sent(k, kBytes);
      l.received(k, 7);
    }
  }
  ASSERT_EQ(l.entries().size(), keys.size());
  EXPECT_TRUE(std::is_sorted(l.entries().begin(), l.entries().end(),
                             [](const auto& a, const auto& b) { return a.key < b.key; }));
  for (const TrafficEntry& e : l.entries()) {
    EXPECT_EQ(e.sent.messages, 3u);
    EXPECT_EQ(e.sent.bytes, (quant::WireBytes{.payload = 30, .scale = 12, .padding = 6}));
    EXPECT_EQ(e.received.messages, 3u);
    EXPECT_EQ(e.received.bytes, quant::WireBytes{.payload = 21});
  }
}

TEST(Ledger, SumsALinkWithoutControlUnlessAsked) {
  Ledger l;
  l.sent(key(0, Collective::kAllGather), kBytes);
  l.sent(key(0, Collective::kAllReduce, 1), kBytes);
  l.sent(key(0, Collective::kAllGather, 0, quant::Role::kControl), kBytes);
  l.sent(key(1, Collective::kAllGather), kBytes);
  EXPECT_EQ(l.sent_on(0).bytes.total(), 32u);
  EXPECT_EQ(l.sent_on(0).messages, 2u);
  EXPECT_EQ(l.sent_on(0, true).messages, 3u);
  EXPECT_EQ(l.sent_on(1).messages, 1u);
  EXPECT_EQ(l.sent_on(2), Traffic{});
}

TEST(Ledger, SinceIsTheDifferenceAndAddUndoesIt) {
  Ledger l;
  l.sent(key(1, Collective::kAllGather), kBytes);
  l.sent(key(0, Collective::kAllGather), kBytes);
  l.collective({});
  const Ledger earlier = l;
  EXPECT_TRUE(l.since(earlier).entries().empty());

  l.sent(key(1, Collective::kAllGather), kBytes);
  l.received(key(0, Collective::kAllGather), 5);
  l.sent(key(0, Collective::kBroadcast), kBytes);
  l.collective({});
  l.collective({});
  const Ledger d = l.since(earlier);
  EXPECT_EQ(d.collectives(), 2u);
  ASSERT_EQ(d.entries().size(), 3u);
  EXPECT_EQ(d.sent_on(1).bytes, kBytes);
  EXPECT_EQ(d.sent_on(0).messages, 1u);

  Ledger sum = earlier;
  sum.add(d);
  EXPECT_EQ(sum.collectives(), l.collectives());
  ASSERT_EQ(sum.entries().size(), l.entries().size());
  for (std::size_t i = 0; i < sum.entries().size(); ++i) {
    EXPECT_EQ(sum.entries()[i].key, l.entries()[i].key);
    EXPECT_EQ(sum.entries()[i].sent, l.entries()[i].sent);
    EXPECT_EQ(sum.entries()[i].received, l.entries()[i].received);
  }

  l.reset();
  EXPECT_TRUE(l.entries().empty());
  EXPECT_EQ(l.collectives(), 0u);
  l.sent(key(2, Collective::kOther), kBytes);  // Works on after a reset.
  EXPECT_EQ(l.sent_on(2).messages, 1u);
}

TEST(Ledger, NamesAndAlgorithms) {
  EXPECT_EQ(name(Collective::kGatherScalars), "gather_scalars");
  EXPECT_EQ(name(Collective::kOther), "other");
  EXPECT_EQ(name(Phase::kCheckpoint), "checkpoint");
  EXPECT_EQ(name(Phase::kOther), "other");
  for (Algorithm a :
       {Algorithm::kRing, Algorithm::kAllToAll, Algorithm::kHierarchical, Algorithm::kNative}) {
    EXPECT_EQ(parse_algorithm(name(a)), a);
  }
  EXPECT_EQ(test::error_of<UsageError>([] { parse_algorithm("tree"); }),
            "[algorithm] expected one of ring, all_to_all, hierarchical, native, found 'tree'");
}

}  // namespace
}  // namespace zeropp::hierarchy
