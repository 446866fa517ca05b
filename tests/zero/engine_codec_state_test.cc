// Codecs with state inside the engine: skipped steps, loss scales, evaluation, memory, another
// N.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hierarchy/chunks.h"
#include "quant/error.h"
#include "tests/support/spawn.h"
#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Topology;
using quant::MemoryKind;

const std::vector<std::string>& stateful_specs() {
  static const std::vector<std::string> specs{"ef|int4:block=16",
                                              "loco(reset=3)|hadamard(8)|int4:block=16",
                                              "hadamard(8)|ef21|int4:block=16"};
  return specs;
}

constexpr std::size_t kMatrix = 9 * 11;

/// Uneven gradients that do not change; NaN on rank 2 in some micro-steps.
std::function<std::unique_ptr<zero::Model>(int)> uneven(std::vector<int> bad_passes,
                                                        float size = 1) {
  return [=](int rank) {
    ConstantModelConfig c{.tensors = {toy_tensor("matrix", {9, 11}), toy_tensor("bias", {5})}};
    c.gradient = [=](const GradPoint& p) {
      const bool bad = rank == 2 && p.tensor == 0 && p.element == 50 &&
                       std::count(bad_passes.begin(), bad_passes.end(), p.pass) > 0;
      if (bad) return std::numeric_limits<float>::quiet_NaN();
      return size * std::sin(static_cast<float>(p.element) + 0.1F * static_cast<float>(rank));
    };
    return constant_model(c);
  };
}

Experiment experiment(const std::string& spec, int stage) {
  Experiment e{.scheme = at_stage(stage), .config = toy_config(), .model = uneven({})};
  quantize_gradients(e.config, 2, spec);
  return e;
}

TEST(CodecState, ASkippedStepLeavesNoTrace) {
  for (const std::string& spec : stateful_specs()) {
    for (const int stage : {0, 2, 3}) {
      SCOPED_TRACE(spec + " at stage " + std::to_string(stage));
      Experiment e = experiment(spec, stage);
      e.config.gas = 2;
      e.model = uneven({3, 4});  // The second micro-step of step 1, the first of step 2.
      e.steps = 6;
      const Results with = run(e);
      e.model = uneven({});
      e.steps = 4;
      const Results without = run(e);
      ASSERT_EQ(with[0].skipped, 2U);
      EXPECT_EQ(with[0].hashes.back(), without[0].hashes.back());
      for (std::size_t r = 0; r < with.size(); ++r) {
        ASSERT_EQ(with[r].residuals.size(), without[r].residuals.size());
        ASSERT_FALSE(with[r].residuals.empty());
        for (std::size_t i = 0; i < with[r].residuals.size(); ++i) {
          EXPECT_TRUE(with[r].residuals[i].bytes == without[r].residuals[i].bytes);
        }
      }
    }
  }
}

TEST(CodecState, ALossScaleChangesNoBit) {
  for (const std::string& spec : stateful_specs()) {
    Experiment e = experiment(spec, 2);
    e.steps = 5;
    const Results off = run(e);
    e.config.loss_scale = {.enabled = true, .initial_scale_power = 6, .loss_scale_window = 2};
    const Results on = run(e);  // Doubled on the way.
    EXPECT_NE(on[0].steps.back().loss_scale, on[0].steps.front().loss_scale);
    expect_same(off, on);
  }
}

TEST(CodecState, EvaluationLeavesItAlone) {
  for (const std::string& spec : stateful_specs()) {
    for (const int stage : {1, 2}) {
      Experiment e = experiment(spec, stage);
      e.model = [](int) { return tied_mlp(); };
      quantize_weights(e.config, "ef21|int8:block=16");
      e.steps = 4;
      const Results without = run(e);
      e.before_step = [](Engine& engine, int) {
        engine.evaluate(9);
        engine.evaluate(9, true);
      };
      expect_same(without, run(e));
    }
  }
}

TEST(CodecState, StageThreeRefusesItForWeights) {
  for (const auto& scheme : {at_stage(3), hpz(2)}) {
    for (const std::string& spec : stateful_specs()) {
      Experiment e{.scheme = scheme, .config = toy_config(), .model = uneven({})};
      quantize_weights(e.config, spec);
      EXPECT_THAT(error_of<UsageError>([&] { run(e); }),
                  testing::HasSubstr("a codec without state"));
    }
  }
}

/// Mean distance of the matrix from that of an exact run.
double drift(Experiment e, const std::string& spec) {
  e.config.grad_codecs.clear();
  const auto exact = run(e)[0].state[0];
  quantize_gradients(e.config, 2, spec);
  const auto coded = run(e)[0].state[0];
  double sum = 0;
  for (std::size_t i = 0; i < kMatrix; ++i) sum += std::fabs(double{exact[i]} - coded[i]);
  return sum / kMatrix;
}

TEST(CodecState, FeedbackCatchesUpWithWhatWasLost) {
  Experiment e = experiment("int4:block=16", 2);
  e.config.optimizer = {.kind = zero::OptimizerKind::kSgd, .lr = 0.01};
  e.steps = 40;
  e.hashes = false;
  const double plain = drift(e, "int4:block=16");
  EXPECT_LT(drift(e, "ef|int4:block=16"), plain / 5);
  EXPECT_LT(drift(e, "ef21|int4:block=16"), plain / 5);
}

TEST(CodecState, MemoryIsTheResidualsAndNothingIsLeft) {
  const Topology topology = Topology::two_level(2, 2);
  for (const bool ef21 : {false, true}) {
    Experiment e = experiment(ef21 ? "ef21|int4:block=16" : "ef|int4:block=16", 3);
    const Results results = run(e);
    for (int r = 0; r < 4; ++r) {
      const hierarchy::ChunkMap map{kMatrix, 4};  // The bias is exact.
      const std::size_t node = hierarchy::shard_elems(map, 2, r), own = map.size(r);
      // Sent: all in the node, the node's shard across. Received: from 2 and from 2 sources.
      std::size_t elements = kMatrix + node;
      if (ef21) elements += 2 * node + 2 * own;
      const auto& memory = results[static_cast<std::size_t>(r)].memory;
      EXPECT_EQ(memory.peak_by_kind()[static_cast<std::size_t>(MemoryKind::kResidual)],
                2 * 4 * elements)
          << r;
      EXPECT_EQ(results[static_cast<std::size_t>(r)].memory_left, 0U);
    }
  }
}

std::vector<quant::LogicalResidual> merged(const Results& results) {
  std::vector<std::vector<quant::ResidualPiece>> by_rank;
  for (const RankResult& r : results) by_rank.push_back(r.residuals);
  return merge_residuals(by_rank, [](std::uint32_t) { return kMatrix; });
}

/// What is still to be sent of every element, over all hops.
std::vector<double> to_be_sent(const std::vector<quant::LogicalResidual>& residuals) {
  std::vector<double> sum(kMatrix);
  for (const auto& r : residuals) {
    for (std::size_t i = 0; i < kMatrix; ++i) sum[i] += r.values[i];
  }
  return sum;
}

TEST(CodecState, AnotherNSendsWhatWasNotSent) {
  Experiment e = experiment("ef|int4:block=16", 2);
  e.config.optimizer = {.kind = zero::OptimizerKind::kSgd, .lr = 1};
  e.steps = 3;
  const auto left = merged(run(e));
  ASSERT_EQ(left.size(), 2U);  // One a hop.
  e.topology = Topology::two_level(3, 2);
  e.model = uneven({}, 0);  // Nothing new comes.
  e.steps = 1;
  e.config.grad_codecs.clear();
  const auto start = run(e)[0].state[0];
  quantize_gradients(e.config, 2, "ef|int4:block=16");
  e.adopt = left;
  const Results results = run(e);
  const auto before = to_be_sent(left), after = to_be_sent(merged(results));
  double moved = 0;
  for (std::size_t i = 0; i < kMatrix; ++i) {
    const double sent = double{start[i]} - results[0].state[0][i];
    EXPECT_NEAR(sent, before[i] - after[i], 1e-6) << i;
    moved += std::fabs(sent);
  }
  EXPECT_GT(moved, 0.1);
}

}  // namespace
}  // namespace zeropp::test
