// Reductions whose answers are known: integers, constants, bounds, extremes of fp16, NaN.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

TEST(Mean, IntegersSumExactly) {
  for (const auto& fan_outs : kTopologies) {
    const Topology t = topology(fan_outs);
    if ((t.ranks() & (t.ranks() - 1)) != 0) continue;  // Means of halves stay exact.
    for (const Algorithm algorithm : kAlgorithms) {
      auto p = problem({fan_outs}, algorithm, 35);
      for (std::size_t rank = 0; rank < p.inputs.size(); ++rank) {
        for (std::size_t i = 0; i < 35; ++i) {
          p.inputs[rank][i] = static_cast<float>((rank * 31 + i * 17) % 101) - 50.0F;
        }
      }
      const auto found = run(Call::kAllReduce, {p});
      const auto mean = mean_of_group(p, 0);
      for (const auto& outs : found) {
        const auto y = outs[0].floats();
        for (std::size_t i = 0; i < 35; ++i) {
          EXPECT_EQ(static_cast<double>(y[i]), mean[i]) << text(p, 0);
        }
      }
    }
  }
}

TEST(Mean, ConstantGradientsSurviveIntegerCodecs) {
  for (const char* spec : {"int8", "int4", "int8:block=32", "int4:block=16"}) {
    for (const float x : {1.0F, -1.0F}) {
      for (const auto& fan_outs : {std::vector<int>{3, 2}, {4, 2}, {2, 2, 3}}) {
        for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
          auto p = problem({fan_outs}, algorithm, 1000,
                           std::vector<std::string>(fan_outs.size(), spec));
          for (auto& in : p.inputs) in.assign(1000, x);
          for (const auto& outs : run(Call::kAllReduce, {p})) {
            for (const float y : outs[0].floats()) ASSERT_EQ(y, x) << text(p, 0);
          }
        }
      }
    }
  }
}

TEST(Mean, MeansLieWithinTheirBound) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const auto& [wire, ulp] : {std::pair{Dtype::kF32, 0x1p-24}, {Dtype::kBF16, 0x1p-8}}) {
      const auto p = problem({{3, 4}}, algorithm, 1000, {}, wire);
      const auto found = run(Call::kAllReduce, {p});
      const auto mean = mean_of_group(p, 0);
      for (const auto& outs : found) {
        const auto y = outs[0].floats();
        // Inputs lie in [-1, 1): each of at most 2 N roundings errs by half an ulp of 1.
        for (std::size_t i = 0; i < y.size(); ++i) {
          EXPECT_NEAR(static_cast<double>(y[i]), mean[i], 24 * ulp);
        }
      }
    }
  }
}

TEST(Mean, LargeHalvesDoNotOverflowAndSmallOnesAreCounted) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const float x : {2000.0F, 65504.0F, 6e-8F}) {
      auto p = problem({{8, 8}}, algorithm, 128, {}, Dtype::kF16);
      p.in = Dtype::kF16;
      p.out = Dtype::kF16;
      for (auto& in : p.inputs) in.assign(128, x);
      std::vector<std::uint64_t> underflow(64);
      const auto found = on_ranks(p.topology, [&](Comm& comm) {
        ReduceProblem mine = p;
        mine.options.underflow = &underflow[static_cast<std::size_t>(comm.rank())];
        return run(comm, Call::kAllReduce, {mine});
      });
      std::uint64_t total = 0;
      for (const std::uint64_t u : underflow) total += u;
      const bool lost = algorithm == Algorithm::kRing && x < 1e-6F;  // x/64 rounds to zero.
      EXPECT_EQ(total > 0, lost) << name(algorithm) << " " << x;
      const float mean = quant::round_to(Dtype::kF16, x);
      for (const auto& outs : found) {
        for (const float y : outs[0].floats()) {
          if (x < 1e-6F) {
            EXPECT_EQ(y, lost ? 0.0F : mean);
          } else {
            EXPECT_NEAR(y, mean, mean / 32) << name(algorithm);  // The ring rounds 63 times.
          }
        }
      }
    }
  }
}

TEST(Mean, AMeanThatRoundsToZeroIsCounted) {
  auto p = problem({{2, 2}}, Algorithm::kAllToAll, 4, {}, Dtype::kF16);
  for (auto& in : p.inputs) in.assign(4, 0.0F);
  p.inputs[1][2] = 6e-8F;
  std::vector<std::uint64_t> underflow(4);
  on_ranks(p.topology, [&](Comm& comm) {
    ReduceProblem mine = p;
    mine.options.underflow = &underflow[static_cast<std::size_t>(comm.rank())];
    return run(comm, Call::kReduceScatter, {mine});
  });
  EXPECT_EQ(underflow, (std::vector<std::uint64_t>{0, 0, 1, 0}));
}

TEST(Mean, NonFiniteInputsReachTheResult) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const float bad : {std::nanf(""), INFINITY}) {
      auto p = problem({{3, 2}}, algorithm, 60);
      if (algorithm != Algorithm::kRing) p.codecs = make_codecs({"int8", "int4"}, Dtype::kF32);
      p.inputs[4][17] = bad;
      for (const auto& outs : run(Call::kAllReduce, {p})) {
        EXPECT_FALSE(std::isfinite(outs[0].floats()[17]));
      }
    }
  }
}

}  // namespace
}  // namespace zeropp::test
