// Codecs with state in the collectives: the first call is the plain codec's, later ones catch
// up with what was lost, and every rank that decodes sees the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "quant/codec_state.h"
#include "quant/error.h"
#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

using quant::CodecState;
using quant::Role;

constexpr std::size_t kElems = 101;

std::vector<float> input(int rank) {
  std::vector<float> x(kElems);
  for (std::size_t i = 0; i < kElems; ++i) x[i] = value(3, static_cast<std::uint64_t>(rank), i);
  return x;
}

/// The results of some reduce-scatters of the same inputs, a step each.
std::vector<std::vector<Array>> reduce(const Topology& t, Algorithm algorithm,
                                       const std::string& spec, int steps) {
  const Codecs codecs = make_codecs(
      std::vector<std::string>(static_cast<std::size_t>(t.levels()), spec), Dtype::kF32);
  return on_ranks(t, [&](Comm& comm) {
    CodecState state;
    const auto levels = raw(codecs);
    const Array in(Dtype::kF32, input(comm.rank()));
    std::vector<Array> results;
    for (int step = 0; step < steps; ++step) {
      const hierarchy::ChunkMap map{kElems, comm.size()};
      Array& out = results.emplace_back(Dtype::kF32, map.size(comm.rank()));
      reduce_scatter(comm,
                     {.algorithm = algorithm,
                      .role = Role::kGradient,
                      .step = static_cast<std::uint64_t>(step),
                      .state = &state},
                     {},
                     std::vector<hierarchy::ReduceTensor>{{.tensor = 0,
                                                           .numel = kElems,
                                                           .in = in.view(),
                                                           .out = out.mut(),
                                                           .codecs = levels}});
      state.commit(Role::kGradient);
    }
    return results;
  });
}

TEST(StatefulReduction, StartsAsThePlainCodec) {
  for (const auto& fan_outs : kTopologies) {
    const Topology t = topology(fan_outs);
    if (t.ranks() == 1) continue;
    for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      const auto plain = reduce(t, algorithm, "int4:block=8", 1);
      for (const char* spec : {"ef|int4:block=8", "loco|int4:block=8", "ef21|int4:block=8"}) {
        EXPECT_TRUE(reduce(t, algorithm, spec, 1) == plain) << spec << " N=" << t.ranks();
      }
    }
  }
}

TEST(StatefulReduction, CatchesUpWithTheExactMean) {
  constexpr int kSteps = 24;
  for (const auto& fan_outs : kTopologies) {
    const Topology t = topology(fan_outs);
    if (t.ranks() == 1) continue;
    for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      const auto ef = reduce(t, algorithm, "ef|int4:block=8", kSteps);
      const auto ef21 = reduce(t, algorithm, "hadamard(4)|ef21|int4:block=8", kSteps);
      for (int rank = 0; rank < t.ranks(); ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        const auto [begin, end] = chunk_range(kElems, t.ranks(), rank);
        for (std::size_t i = begin; i < end; ++i) {
          double mean = 0, sent = 0;
          for (int s = 0; s < t.ranks(); ++s) {
            mean += input(s)[i] / static_cast<double>(t.ranks());
          }
          for (const Array& step : ef[r]) sent += step.floats()[i - begin];
          // What is missing is in residuals of at most half a step a hop, whatever the steps.
          ASSERT_NEAR(sent / kSteps, mean, 0.3 / kSteps) << t.ranks() << ' ' << i;
          ASSERT_NEAR(ef21[r].back().floats()[i - begin], mean, 1e-4) << t.ranks() << ' ' << i;
        }
      }
    }
  }
}

TEST(StatefulGather, AllRanksHoldTheSameEstimate) {
  const auto codec = quant::make_codec("ef21|int4:block=8");
  const std::vector<float> whole = input(0);
  for (const auto& fan_outs : kTopologies) {
    const Topology t = topology(fan_outs);
    for (const Algorithm algorithm : kAlgorithms) {
      const auto found = on_ranks(t, [&](Comm& comm) {
        CodecState state;
        const Array shard(Dtype::kF32, cut(whole, comm.size(), comm.size(), comm.rank()));
        std::vector<Array> results;
        for (int step = 0; step < 12; ++step) {
          Array& out = results.emplace_back(Dtype::kF32, kElems);
          all_gather(comm, {.algorithm = algorithm, .state = &state},
                     std::vector<hierarchy::GatherTensor>{{.tensor = 0,
                                                           .numel = kElems,
                                                           .shard = shard.view(),
                                                           .out = out.mut(),
                                                           .codec = codec.get()}});
          state.commit(Role::kWeight);
        }
        return results;
      });
      for (const auto& results : found) ASSERT_TRUE(results == found[0]) << t.ranks();
      const auto last = found[0].back().floats(), first = found[0][0].floats();
      double worst = 0;
      for (std::size_t i = 0; i < kElems; ++i) {
        ASSERT_NEAR(last[i], whole[i], 1e-5);
        worst = std::max<double>(worst, std::fabs(first[i] - whole[i]));
      }
      EXPECT_GT(worst, 0.01);
    }
  }
}

TEST(StatefulAllToAll, IsRefusedWhereReceiversWouldKeepState) {
  const auto codec = quant::make_codec("ef21|int4:block=8");
  const std::string text = error_of<UsageError>([&] {
    on_ranks(topology({2}), [&](Comm& comm) {
      CodecState state;
      const std::vector<float> in(8);
      std::vector<Array> out{Array(Dtype::kF32, in.size())};
      all_to_all(comm, {.state = &state}, {quant::view(in), out[0].mut(), 4, codec.get()});
      return out;
    });
  });
  EXPECT_THAT(text, testing::HasSubstr("receivers keep no state"));
}

}  // namespace
}  // namespace zeropp::test
