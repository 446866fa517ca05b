// What a rank really holds, against a formula written out again element by element.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Topology;
using quant::Dtype;
using quant::MemoryKind;

struct Layout {
  std::string name;
  Dtype param, accum;
  zero::OptimizerConfig optimizer;
  std::uint64_t param_bytes, grad_bytes, optimizer_bytes;  ///< An element, unsharded.
};

std::vector<Layout> layouts() {
  const auto sgd = zero::OptimizerKind::kSgd;
  return {{"fp32", Dtype::kF32, Dtype::kF32, {}, 4, 4, 12},
          {"bf16_16B", Dtype::kBF16, Dtype::kBF16, {}, 2, 2, 12},
          {"bf16_20B", Dtype::kBF16, Dtype::kF32, {}, 2, 2 + 4, 12},
          {"fp16_16B", Dtype::kF16, Dtype::kF16, {}, 2, 2, 12},
          {"bf16_sgd", Dtype::kBF16, Dtype::kBF16, {.kind = sgd}, 2, 2, 4},
          {"bf16_sgd_momentum",
           Dtype::kBF16,
           Dtype::kBF16,
           {.kind = sgd, .momentum = 0.9},
           2,
           2,
           8}};
}

/// Moduli of the states, as the table of design section 4 has them.
struct Moduli {
  std::size_t params, grads, optimizer, secondary;
};
Moduli moduli(const std::string& scheme, std::size_t n, std::size_t group) {
  if (scheme == "stage0") return {1, 1, 1, 0};
  if (scheme == "stage1" || scheme == "stage1_all_reduce") return {1, 1, n, 0};
  if (scheme == "stage2") return {1, n, n, 0};
  if (scheme == "stage3") return {n, n, n, 0};
  if (scheme == "hpz") return {n, n, n, group};
  return {group, group, group, 0};  // HSDP, MiCS.
}

/// Elements of a rank's shard, one by one: element e is in world chunk e / ceil(numel / N).
std::uint64_t held(std::size_t numel, std::size_t n, std::size_t modulus, std::size_t rank) {
  if (modulus == 0) return 0;
  const std::size_t chunk = (numel + n - 1) / n;
  std::uint64_t count = 0;
  for (std::size_t e = 0; e < numel; ++e) count += e / chunk % modulus == rank % modulus;
  return count;
}

ConstantModelConfig odd_tensors(Dtype dtype) {
  return {.tensors = {toy_tensor("a", {7, 19}), toy_tensor("b", {1}), toy_tensor("c", {0}),
                      toy_tensor("d", {8, 0, 24}), toy_tensor("e", {9}),
                      toy_tensor("f", {16, 4}), toy_tensor("g", {1001})},
          .units = {{0, 1}, {2, 3, 4, 5}, {6, 0}},
          .dtype = dtype,
          .gradient = [](const GradPoint&) { return 0.25F; }};
}

class Memory : public testing::TestWithParam<NamedScheme> {};

TEST_P(Memory, PeakOfModelStatesIsTheFormula) {
  for (const Layout& layout : layouts()) {
    for (const int gas : {1, 3}) {
      const ConstantModelConfig model = odd_tensors(layout.param);
      Experiment e{.topology = Topology::two_level(2, 4),
                   .scheme = GetParam().request,
                   .config = toy_config(),
                   .model = [&](int) { return constant_model(model); },
                   .steps = 2,
                   .hashes = false};
      e.config.grad_accum = layout.accum;
      e.config.wire = layout.param;
      e.config.optimizer = layout.optimizer;
      e.config.gas = gas;
      const Results results = run(e);
      const Moduli m = moduli(GetParam().name, 8, 4);
      for (std::size_t r = 0; r < results.size(); ++r) {
        SCOPED_TRACE(testing::Message() << layout.name << " gas " << gas << " rank " << r);
        std::uint64_t params = 0, grads = 0, optimizer = 0, secondary = 0;
        for (const auto& t : model.tensors) {
          params += held(t.numel, 8, m.params, r) * layout.param_bytes;
          grads += held(t.numel, 8, m.grads, r) * layout.grad_bytes;
          optimizer += held(t.numel, 8, m.optimizer, r) * layout.optimizer_bytes;
          secondary += held(t.numel, 8, m.secondary, r) * layout.param_bytes;
        }
        const auto& f = results[r].formula;
        EXPECT_EQ(f.params, params);
        EXPECT_EQ(f.grads, grads);
        EXPECT_EQ(f.master + f.momentum + f.variance, optimizer);
        EXPECT_EQ(f.secondary, secondary);
        const auto& memory = results[r].memory;
        EXPECT_EQ(memory.peak_model_states(), params + grads + optimizer + secondary);
        const auto peak = [&](MemoryKind k) {
          return memory.peak_by_kind()[static_cast<std::size_t>(k)];
        };
        EXPECT_EQ(peak(MemoryKind::kParams), params);
        EXPECT_EQ(peak(MemoryKind::kGrads), grads);
        EXPECT_EQ(peak(MemoryKind::kSecondary), secondary);
        EXPECT_EQ(results[r].memory_left, 0U);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, Memory, testing::ValuesIn(schemes(4)),
                         [](const auto& test) { return test.param.name; });

TEST(MemoryFormula, UnshardedIsSixteenOrTwentyBytes) {
  for (const Layout& layout : layouts()) {
    const auto mlp = TiedMlpConfig{.dtype = layout.param};
    Experiment e{.scheme = at_stage(0), .config = toy_config(), .model = [&](int) {
                   return tied_mlp(mlp);
                 }};
    e.config.grad_accum = layout.accum;
    e.config.optimizer = layout.optimizer;
    e.config.wire = layout.param;
    const std::uint64_t each = layout.param_bytes + layout.grad_bytes + layout.optimizer_bytes;
    const Results results = run(e);
    for (const auto& r : results) {
      EXPECT_EQ(r.memory.peak_model_states(), each * elements(*tied_mlp(mlp))) << layout.name;
      EXPECT_EQ(r.memory_left, 0U);
    }
    if (layout.name == "bf16_16B") {
      EXPECT_EQ(each, 16U);
    }
    if (layout.name == "bf16_20B") {
      EXPECT_EQ(each, 20U);
    }
  }
}

/// Bytes of one kind that a rank held at its worst.
std::uint64_t peak(const RankResult& r, MemoryKind kind) {
  return r.memory.peak_by_kind()[static_cast<std::size_t>(kind)];
}

TEST(Gathered, HoldsOneUnitAndWhatIsPrefetched) {
  // Three units of 100, 200 and 300 elements and a tied tensor of 10 in the first and the last.
  const ConstantModelConfig model{.tensors = {toy_tensor("tied", {10}), toy_tensor("a", {90}),
                                              toy_tensor("b", {200}), toy_tensor("c", {290})},
                                  .units = {{0, 1}, {2}, {3, 0}},
                                  .gradient = [](const GradPoint&) { return 1.0F; }};
  Experiment e{.scheme = at_stage(3), .config = toy_config(), .model = [&](int) {
                 return constant_model(model);
               }};
  e.config.prefetch = 0;
  EXPECT_EQ(peak(run(e)[0], MemoryKind::kGathered), 4U * 300);
  // The unit in hand and up to 300 ahead: while c + tied is in hand, its own backward (290).
  e.config.prefetch = 300;
  EXPECT_EQ(peak(run(e)[0], MemoryKind::kGathered), 4U * (300 + 290));
  e.config.prefetch = 1 << 20;
  // Everything at once: forward 100 + 200 + 300, backward 290 + 200 + 90.
  EXPECT_EQ(peak(run(e)[0], MemoryKind::kGathered), 4U * (600 + 580));
  for (const int stage : {0, 1, 2}) {
    e.scheme = at_stage(stage);
    EXPECT_EQ(peak(run(e)[0], MemoryKind::kGathered), 0U) << stage;
  }
}

TEST(Workspace, ShrinksWithTheBucketWhereGradientsAreSharded) {
  ConstantModelConfig model{.gradient = [](const GradPoint&) { return 1.0F; }};
  for (int t = 0; t < 10; ++t) {
    model.tensors.push_back(toy_tensor("t" + std::to_string(t), {100}));
  }
  for (const int stage : {2, 3}) {
    Experiment e{.scheme = at_stage(stage), .config = toy_config(), .model = [&](int) {
                   return constant_model(model);
                 }};
    e.config.reduce_bucket = 1;
    EXPECT_EQ(peak(run(e)[0], MemoryKind::kWorkspace), 4U * 100);
    e.config.reduce_bucket = 250;  // Closes before the third would overfill it.
    EXPECT_LE(peak(run(e)[0], MemoryKind::kWorkspace), 4U * 300);
    e.config.reduce_bucket = 100000;
    EXPECT_EQ(peak(run(e)[0], MemoryKind::kWorkspace), 4U * 1000);
  }
}

// Evaluation may need memory of its own; it must not add to the model states.
TEST(Evaluation, AddsNoModelState) {
  for (const auto& scheme : schemes(2)) {
    Experiment e{.scheme = scheme.request, .config = toy_config()};
    if (scheme.request.stage > 0) quantize_weights(e.config);
    e.before_step = [](Engine& engine, int) {
      engine.evaluate(9);
      engine.evaluate(9, true);
    };
    for (const auto& r : run(e)) {
      EXPECT_EQ(r.memory.peak_model_states(), r.formula.total()) << scheme.name;
      EXPECT_EQ(r.memory_left, 0U);
      EXPECT_GT(r.memory.peak_total(hierarchy::Phase::kEval), 0U);
    }
  }
}

}  // namespace
}  // namespace zeropp::test
