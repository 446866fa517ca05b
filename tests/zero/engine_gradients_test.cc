// Mean gradients whose exact value is known: norms, clipping, accumulation, codecs, 16-bit
// wires.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Algorithm;
using hierarchy::Topology;
using quant::Dtype;

constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kAllToAll,
                                     Algorithm::kHierarchical};

ConstantModelConfig shapes(std::function<float(const GradPoint&)> gradient) {
  return {
      .tensors = {toy_tensor("wte", {5, 7}), toy_tensor("bias", {3}), toy_tensor("one", {1}),
                  toy_tensor("none", {0}), toy_tensor("matrix", {16, 20})},
      .units = {{0}, {1, 2, 3}, {4, 0}},
      .gradient = std::move(gradient)};
}

/// Small integers, other ones for every rank, micro-step, tensor and element.
float integer(int rank, const GradPoint& p) {
  const auto i = static_cast<int>(p.element % 1000), t = static_cast<int>(p.tensor);
  return static_cast<float>((rank * 7 + p.pass * 3 + t * 5 + i * 11) % 31 - 15);
}

TEST(Mean, IsExactOverRanksAndMicroStepsInEveryScheme) {
  for (const auto& scheme : schemes(4)) {
    for (const Algorithm algorithm : kAlgorithms) {
      SCOPED_TRACE(testing::Message() << scheme.name << " " << hierarchy::name(algorithm));
      Experiment e{.topology = Topology::two_level(2, 4),
                   .scheme = scheme.request,
                   .config = toy_config(),
                   .model =
                       [](int rank) {
                         return constant_model(
                             shapes([rank](const GradPoint& p) { return integer(rank, p); }));
                       },
                   .steps = 2,
                   .gradients = true};
      e.config.algorithm = algorithm;
      e.config.gas = 4;
      const Results results = run(e);
      double squares = 0;
      for (std::uint32_t t = 0; t < 5; ++t) {
        const State& gradients = results[0].gradients;
        ASSERT_EQ(gradients[t].size(), shapes({}).tensors[t].numel);
        for (std::size_t i = 0; i < gradients[t].size(); ++i) {
          double sum = 0;
          for (int rank = 0; rank < 8; ++rank) {
            for (int pass = 4; pass < 8; ++pass) sum += integer(rank, {pass, t, i});
          }
          EXPECT_EQ(gradients[t][i], sum / 32) << t << " " << i;
          squares += sum / 32 * sum / 32;
        }
      }
      // 32nds squared add up without rounding, in any order; the tied tensor counts once.
      for (const auto& r : results) EXPECT_EQ(r.steps[1].grad_norm, std::sqrt(squares));
    }
  }
}

// A branch that only odd ranks use in micro-step 1, only even ones in 3.
TEST(Accumulation, KeepsEveryMicroStepOfEveryRank) {
  const auto branch = [](int rank, const GradPoint& p) {
    if (p.tensor != 4) return 1.0F;
    const int micro = p.pass % 4;
    return micro == (rank % 2 == 1 ? 1 : 3) ? static_cast<float>(8 + rank) : 0.0F;
  };
  for (const Dtype accum : {Dtype::kF32, Dtype::kBF16}) {
    for (const auto& scheme : schemes(2)) {
      SCOPED_TRACE(testing::Message() << scheme.name << " " << quant::name(accum));
      Experiment e{.scheme = scheme.request,
                   .config = toy_config(),
                   .model =
                       [&](int rank) {
                         auto c =
                             shapes([&, rank](const GradPoint& p) { return branch(rank, p); });
                         c.dtype = Dtype::kBF16;
                         return constant_model(c);
                       },
                   .gradients = true};
      e.config.gas = 4;
      e.config.grad_accum = accum;
      const State gradients = run(e)[0].gradients;
      // Mean over ranks 0..3 of (8 + rank) / 4; every other tensor has 1.
      EXPECT_THAT(gradients[4], testing::Each(9.5F / 4));
      EXPECT_THAT(gradients[0], testing::Each(1.0F));
      EXPECT_THAT(gradients[1], testing::Each(1.0F));
    }
  }
}

TEST(Clipping, UsesTheNormOfTheWholeMeanGradient) {
  const double clip = 0.1;
  double squares = 0;
  const ConstantModelConfig model = shapes([](const GradPoint& p) { return integer(1, p); });
  for (std::uint32_t t = 0; t < 5; ++t) {
    for (std::size_t i = 0; i < model.tensors[t].numel; ++i) {
      squares += std::pow(integer(1, {0, t, i}), 2);
    }
  }
  const double norm = std::sqrt(squares);
  State zeros;
  for (const auto& t : model.tensors) zeros.emplace_back(t.numel, 0.0F);
  Results first;
  for (const auto& scheme : schemes(2)) {
    SCOPED_TRACE(scheme.name);
    Experiment e{.scheme = scheme.request,
                 .config = toy_config(),
                 .model = [&](int) { return constant_model(model); },
                 .steps = 1};
    e.config.clip = clip;
    e.config.optimizer = {.kind = zero::OptimizerKind::kSgd, .lr = 1};
    e.before_step = [&](Engine& engine, int) { engine.load_masters(zeros); };
    const Results results = run(e);
    EXPECT_DOUBLE_EQ(results[0].steps[0].grad_norm, norm);  // Before clipping.
    double moved = 0;
    for (std::size_t t = 0; t < 5; ++t) {
      for (std::size_t i = 0; i < model.tensors[t].numel; ++i) {
        const double delta = results[0].state[t][i];
        moved += delta * delta;
        EXPECT_NEAR(delta, -integer(1, {0, static_cast<std::uint32_t>(t), i}) * clip / norm,
                    1e-7);
      }
    }
    EXPECT_NEAR(std::sqrt(moved), clip, 1e-7);
    if (first.empty()) first = results;
    expect_same(first, results);
  }
}

TEST(Clipping, LeavesASmallGradientAlone) {
  Experiment e{.scheme = at_stage(2), .config = toy_config(), .steps = 3};
  const Results off = run(e);
  e.config.clip = 2 * off[0].steps[0].grad_norm + 100;
  expect_same(off, run(e));
}

// Both signs of an extreme survive every hop, whether a tensor is coded or exact.
TEST(Qgz, ConstantsComeBackAsThemselves) {
  for (const std::string spec : {"int4", "int8", "int4:block=16", "int8:block=16",
                                 "int4:block=16,rounding=stochastic"}) {
    for (const bool one_d_exact : {false, true}) {
      for (const auto& scheme : schemes(4)) {
        for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
          SCOPED_TRACE(testing::Message() << spec << " " << scheme.name << " "
                                          << hierarchy::name(algorithm) << one_d_exact);
          Experiment e{.topology = Topology::two_level(2, 4),
                       .scheme = scheme.request,
                       .config = toy_config(),
                       .model =
                           [](int) {
                             return constant_model(shapes([](const GradPoint& p) {
                               return p.tensor == 4 && p.element % 2 == 1 ? -1.0F : 1.0F;
                             }));
                           },
                       .steps = 1,
                       .gradients = true};
          e.config.algorithm = algorithm;
          e.config.exact_grads.one_d = one_d_exact;
          quantize_gradients(e.config, 2, spec);
          const State gradients = run(e)[0].gradients;
          for (std::uint32_t t = 0; t < 4; ++t) {
            EXPECT_THAT(gradients[t], testing::Each(1.0F));
          }
          for (std::size_t i = 0; i < 320; ++i) {
            ASSERT_EQ(gradients[4][i], i % 2 == 1 ? -1.0F : 1.0F) << i;
          }
        }
      }
    }
  }
}

/// 64 ranks, 8 a node, one value everywhere, a wire of fp16.
Experiment sixty_four(float value, Algorithm algorithm, Dtype dtype) {
  Experiment e{.topology = Topology::two_level(8, 8), .config = toy_config(), .steps = 1};
  e.model = [value, dtype](int) {
    return constant_model({.tensors = {toy_tensor("a", {130}), toy_tensor("b", {3})},
                           .dtype = dtype,
                           .gradient = [value](const GradPoint&) { return value; }});
  };
  e.gradients = true;
  e.hashes = false;
  e.config.algorithm = algorithm;
  e.config.wire = Dtype::kF16;
  return e;
}

std::uint64_t underflow(const Results& results) {
  std::uint64_t sum = 0;
  for (const auto& r : results) sum += r.steps[0].underflow;
  return sum;
}

TEST(SixteenBitWire, MeanOf64RanksDoesNotOverflow) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const int stage : {0, 3}) {
        SCOPED_TRACE(testing::Message() << hierarchy::name(algorithm) << " stage " << stage);
        Experiment e = sixty_four(2000.0F, algorithm, dtype);
        e.scheme = at_stage(stage);
        const Results results = run(e);
        EXPECT_EQ(results[0].skipped, 0U);
        EXPECT_EQ(underflow(results), 0U);
        // The ring rounds 63 partial sums, by half an ulp of fp16 each.
        const float bound = algorithm == Algorithm::kRing ? 63 * 2000.0F * 0x1p-12F : 0;
        for (const auto& tensor : results[0].gradients) {
          EXPECT_THAT(tensor, testing::Each(testing::FloatNear(2000.0F, bound)));
        }
      }
    }
  }
}

TEST(SixteenBitWire, UnderflowIsCounted) {
  constexpr float kTiny = 0x1p-24F;  // fp16's smallest, what 6e-8 becomes.
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    // All-to-all hops sum in fp32 and divide behind the sum: the mean survives.
    for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      Experiment e = sixty_four(6e-8F, algorithm, Dtype::kF32);
      e.scheme = at_stage(stage);
      const Results results = run(e);
      EXPECT_THAT(results[0].gradients[0], testing::Each(kTiny));
      EXPECT_EQ(underflow(results), 0U);
    }
    // The ring divides first; all of its 64 contributions vanish.
    Experiment e = sixty_four(6e-8F, Algorithm::kRing, Dtype::kF32);
    e.scheme = at_stage(stage);
    const Results lost = run(e);
    EXPECT_THAT(lost[0].gradients[0], testing::Each(0.0F));
    EXPECT_GE(underflow(lost), 63U * 133);
    // Behind the sum they survive, and large ones overflow instead.
    e.config.predivide = 1;
    const Results kept = run(e);
    EXPECT_THAT(kept[0].gradients[0], testing::Each(kTiny));
    EXPECT_EQ(underflow(kept), 0U);
    e = sixty_four(2000.0F, Algorithm::kRing, Dtype::kF32);
    e.scheme = at_stage(stage);
    e.config.predivide = 1;
    EXPECT_EQ(run(e)[0].skipped, 1U);
    e.config.predivide = 8;  // 64 / 8 behind the sum: 250 each, 16000 at most on the way.
    EXPECT_THAT(run(e)[0].gradients[0], testing::Each(testing::FloatNear(2000.0F, 31.0F)));
  }
}

// In a hierarchy the partial means between nodes are what can vanish.
TEST(SixteenBitWire, UnderflowBetweenNodesIsCounted) {
  Experiment e = sixty_four(0, Algorithm::kHierarchical, Dtype::kF32);
  e.scheme = at_stage(2);
  e.model = [](int rank) {
    return constant_model(
        {.tensors = {toy_tensor("a", {128})}, .gradient = [rank](const GradPoint&) {
           return rank == 9 ? 6e-8F : 0.0F;  // An eighth of it is nothing.
         }});
  };
  const Results results = run(e);
  EXPECT_THAT(results[0].gradients[0], testing::Each(0.0F));
  EXPECT_EQ(underflow(results), 128U);
}

TEST(Predivide, MovesADivisionNotTheMean) {
  for (const int ranks_per_node : {2, 3}) {
    for (const auto& scheme : exact_schemes(ranks_per_node)) {
      for (const Algorithm algorithm : kAlgorithms) {
        for (const double f : {0.0, 1.0, 2.0, 3.0, 2.0 * ranks_per_node}) {
          SCOPED_TRACE(testing::Message() << scheme.name << " " << hierarchy::name(algorithm)
                                          << " f " << f << " of " << 2 * ranks_per_node);
          Experiment e{.topology = Topology::two_level(2, ranks_per_node),
                       .scheme = scheme.request,
                       .config = toy_config(),
                       .model =
                           [](int rank) {
                             return constant_model(shapes([rank](const GradPoint&) {
                               return static_cast<float>(rank);
                             }));
                           },
                       .steps = 1,
                       .gradients = true};
          e.config.algorithm = algorithm;
          e.config.predivide = f;
          const Results results = run(e);
          for (const auto& tensor : results[0].gradients) {
            EXPECT_THAT(tensor, testing::Each(testing::FloatNear(
                                    static_cast<float>(ranks_per_node) - 0.5F, 1e-6F)));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace zeropp::test
