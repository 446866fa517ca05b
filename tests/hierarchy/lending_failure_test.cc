// Ring gathers lend their blocks on from rank to rank: a failure anywhere must neither free
// what a peer of a peer still reads (sanitizers see it) nor leave a rank waiting.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "hierarchy/collectives.h"
#include "hierarchy/transport/virtual.h"
#include "quant/error.h"
#include "quant/registry.h"
#include "tests/support/spawn.h"

namespace zeropp::hierarchy {
namespace {

constexpr int kRanks = 5;

/// Two gathers of three tensors each, in buffers that die with the call; `use` runs between
/// start and finish.
template <class Use>
void gather_twice(Transport& transport, const quant::Codec* codec, Use&& use) {
  Comm comm{.transport = transport};
  for (int call = 0; call < 2; ++call) {
    std::vector<std::vector<float>> shards, outs;
    for (const std::size_t numel : {std::size_t{3000}, std::size_t{17}, std::size_t{40'001}}) {
      const ChunkMap map{numel, kRanks};
      shards.emplace_back(map.size(transport.rank()), static_cast<float>(transport.rank()));
      outs.emplace_back(numel);
    }
    std::vector<GatherTensor> tensors;
    for (std::uint32_t t = 0; t < 3; ++t) {
      tensors.push_back(
          {t, outs[t].size(), quant::view(shards[t]), quant::mut_view(outs[t]), codec});
    }
    PendingGather pending = start_all_gather(comm, {.algorithm = Algorithm::kRing}, tensors);
    use(call);
    pending.finish();
    for (const auto& out : outs) {
      const ChunkMap map{out.size(), kRanks};
      for (int r = 0; r < kRanks; ++r) {
        for (std::size_t i = map.begin(r); i < map.begin(r + 1); ++i) {
          ASSERT_EQ(out[i], static_cast<float>(r));
        }
      }
    }
  }
}

class LendingFailure : public testing::TestWithParam<test::Launch> {
 protected:
  VirtualOptions options() const { return GetParam().options; }
};

TEST_P(LendingFailure, AtAnyExchangeOfAnyRank) {
  const auto int8 = quant::make_codec("int8");
  for (const quant::Codec* codec : {static_cast<const quant::Codec*>(nullptr), &*int8}) {
    for (int fatal = 0; fatal < kRanks; ++fatal) {
      for (std::uint64_t at = 1; at <= 2 * (kRanks - 1); ++at) {
        VirtualOptions o = options();
        o.on_exchange = [&](int rank, const CallInfo&, std::uint64_t sequence) {
          if (rank == fatal && sequence == at) throw std::runtime_error("hook");
        };
        EXPECT_THROW(test::spawn(test::flat(kRanks), o,
                                 [&](Transport& t) { gather_twice(t, codec, [](int) {}); }),
                     TransportError);
      }
    }
  }
}

TEST_P(LendingFailure, BetweenStartAndFinish) {
  for (int fatal = 0; fatal < kRanks; ++fatal) {
    for (int at = 0; at < 2; ++at) {
      EXPECT_THROW(test::spawn(test::flat(kRanks), options(),
                               [&](Transport& t) {
                                 gather_twice(t, nullptr, [&](int call) {
                                   if (t.rank() == fatal && call == at) {
                                     throw std::runtime_error("hook");
                                   }
                                 });
                               }),
                   TransportError);
    }
  }
}

TEST_P(LendingFailure, NothingFails) {
  test::spawn(test::flat(kRanks), options(),
              [](Transport& t) { gather_twice(t, nullptr, [](int) {}); });
}

INSTANTIATE_TEST_SUITE_P(Launches, LendingFailure, testing::ValuesIn(test::launches()),
                         [](const auto& launch) { return launch.param.name; });

}  // namespace
}  // namespace zeropp::hierarchy
