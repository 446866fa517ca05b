// Bytes that crossed links, counted, against the arithmetic of the ZeRO and ZeRO++ papers. All
// sums are over ranks: a gather or a scatter of a tensor moves N - 1 copies of it, however its
// chunks are cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Algorithm;
using hierarchy::Phase;
using hierarchy::Topology;
using quant::Dtype;
using quant::Role;

constexpr Filter kWeights{.role = Role::kWeight};
constexpr Filter kGradients{.role = Role::kGradient};

/// In units of psi * dtype size, over all ranks and one step.
struct Volume {
  std::uint64_t weights, gradients;
};

/// n ranks in blocks of g; `gas` micro-steps.
Volume volume(const std::string& scheme, std::uint64_t n, std::uint64_t g, std::uint64_t gas) {
  const std::uint64_t world = n - 1, groups = n / g, inside = groups * (g - 1);
  if (scheme == "stage0") return {0, 2 * world};
  if (scheme == "stage1") return {world, world};
  if (scheme == "stage1_all_reduce") return {world, 2 * world};
  if (scheme == "stage2") return {world, gas * world};
  if (scheme == "stage3") return {2 * gas * world, gas * world};
  if (scheme == "hpz") return {world + (2 * gas - 1) * inside, gas * world};
  if (scheme == "hsdp") return {2 * gas * inside, gas * (inside + 2 * (groups - 1))};
  return {2 * gas * inside, gas * inside + 2 * (groups - 1)};  // MiCS.
}

struct Case {
  NamedScheme scheme;
  Algorithm algorithm;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.scheme << "_" << hierarchy::name(c.algorithm);
  }
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& scheme : schemes(4)) {
    for (const auto a : {Algorithm::kRing, Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      all.push_back({scheme, a});
    }
  }
  return all;
}

class Bytes : public testing::TestWithParam<Case> {};

TEST_P(Bytes, AreTheVolumeOfTheScheme) {
  const std::string& name = GetParam().scheme.name;
  for (const bool half : {false, true}) {
    for (const int gas : {1, 3}) {
      SCOPED_TRACE(testing::Message() << "half " << half << " gas " << gas);
      const TiedMlpConfig mlp{.tied = false, .dtype = half ? Dtype::kBF16 : Dtype::kF32};
      Experiment e{.topology = Topology::two_level(2, 4),
                   .scheme = GetParam().scheme.request,
                   .config = toy_config(),
                   .model = [&](int) { return tied_mlp(mlp); },
                   .steps = 3,
                   .hashes = false};
      e.config.algorithm = GetParam().algorithm;
      e.config.gas = gas;
      e.config.wire = half ? Dtype::kF16 : Dtype::kF32;
      const Results results = run(e);
      const std::uint64_t psi = elements(*tied_mlp(mlp)) * (half ? 2 : 4);
      const Volume v = volume(name, 8, 4, static_cast<std::uint64_t>(gas));
      for (std::size_t s = 0; s < 3; ++s) {
        EXPECT_EQ(sent_in_step(results, s, kWeights), v.weights * psi);
        EXPECT_EQ(sent_in_step(results, s, kGradients), v.gradients * psi);
      }
    }
  }
}

TEST_P(Bytes, HaveThePhaseThatNeedsThem) {
  const auto& request = GetParam().scheme.request;
  Experiment e{
      .topology = Topology::two_level(2, 4), .scheme = request, .config = toy_config()};
  e.config.algorithm = GetParam().algorithm;
  const Results results = run(e);
  const auto in = [&](Role role, Phase phase) {
    return sent(results, {.role = role, .phase = phase});
  };
  const bool units = request.stage == 3, step = request.stage == 1 || request.stage == 2;
  EXPECT_EQ(in(Role::kWeight, Phase::kForward) > 0, units);
  EXPECT_EQ(in(Role::kWeight, Phase::kBackward) > 0, units);
  EXPECT_EQ(in(Role::kWeight, Phase::kStep) > 0, step);
  EXPECT_EQ(in(Role::kGradient, Phase::kForward), 0U);
  EXPECT_EQ(in(Role::kGradient, Phase::kBackward) > 0, request.stage >= 2);
  EXPECT_EQ(in(Role::kGradient, Phase::kStep) > 0,
            request.stage < 2 || request.mics_group != 0);
  EXPECT_GT(in(Role::kScalar, Phase::kStep), 0U);
  for (const Phase phase : {Phase::kInit, Phase::kEval, Phase::kCheckpoint}) {
    EXPECT_EQ(sent(results, {.phase = phase}), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, Bytes, testing::ValuesIn(cases()),
                         [](const auto& test) { return testing::PrintToString(test.param); });

TEST(HpzBytes, LaterMicroStepsStayInTheNode) {
  const std::uint64_t psi = 4 * elements(*tied_mlp({.tied = false}));
  for (const int gas : {1, 2, 4}) {
    Experiment e{.topology = Topology::two_level(2, 4),
                 .scheme = hpz(4),
                 .config = toy_config(),
                 .model = [](int) { return tied_mlp({.tied = false}); }};
    e.config.gas = gas;
    const Results results = run(e);
    // Hierarchical: the world's gather crosses nodes once, n - 1 copies, then spreads inside.
    const auto later = static_cast<std::uint64_t>(2 * gas - 1);
    EXPECT_EQ(sent_in_step(results, 1, {.role = Role::kWeight, .link = 1}), psi);
    EXPECT_EQ(sent_in_step(results, 1, {.role = Role::kWeight, .link = 0}),
              (6 + 6 * later) * psi);
    EXPECT_EQ(
        sent_in_step(results, 1, {.role = Role::kWeight, .link = 1, .phase = Phase::kBackward}),
        0U);
  }
}

// Sizes are powers of 16, so that the bytes' hexadecimal digits count each tensor's trips.
TEST(Gathers, AreTwoAMicroStepForEachTensor) {
  const ConstantModelConfig model{
      .tensors = {toy_tensor("tied", {1}), toy_tensor("a", {16}), toy_tensor("b", {16, 16}),
                  toy_tensor("c", {4096}), toy_tensor("d", {256, 256})},
      .units = {{0, 1}, {2}, {3}, {4, 0}},
      .gradient = [](const GradPoint&) { return 1.0F; }};
  const auto trips = [&](SchemeRequest scheme, int gas, Filter filter) {
    Experiment e{.topology = Topology::two_level(2, 1),
                 .scheme = scheme,
                 .config = toy_config(),
                 .model = [&](int) { return constant_model(model); }};
    e.config.gas = gas;
    return sent_in_step(run(e), 1, filter) / 4;  // N = 2: one copy of each element.
  };
  // The tied tensor: for the first unit's forward and for the last one's, none for backward.
  EXPECT_EQ(trips(at_stage(3), 1, kWeights), 0x22222U);
  EXPECT_EQ(trips(at_stage(3), 3, kWeights), 0x66666U);
  EXPECT_EQ(trips(at_stage(3), 3, kGradients), 0x33333U);
  EXPECT_EQ(trips(at_stage(3), 1, {.role = Role::kWeight, .phase = Phase::kForward}), 0x11112U);
  EXPECT_EQ(trips(at_stage(3), 1, {.role = Role::kWeight, .phase = Phase::kBackward}),
            0x11110U);
  EXPECT_EQ(trips(at_stage(2), 3, kWeights), 0x11111U);
  EXPECT_EQ(trips(at_stage(2), 3, kGradients), 0x33333U);
  EXPECT_EQ(trips(at_stage(1), 3, kGradients), 0x11111U);
  EXPECT_EQ(trips(at_stage(0), 3, kGradients), 0x22222U);
}

// One Inf on one rank; the weights did not change, so the next forward needs no world gather.
TEST(SkippedStep, LeavesTheSecondaryValid) {
  const auto model = [](int rank) {
    ConstantModelConfig c{.tensors = {toy_tensor("a", {40}), toy_tensor("b", {8, 8})}};
    c.gradient = [rank](const GradPoint& p) {
      const bool bad = rank == 2 && p.pass == 1 && p.tensor == 1 && p.element == 63;
      return bad ? std::numeric_limits<float>::infinity() : 0.5F;
    };
    return constant_model(c);
  };
  const Experiment e{.scheme = hpz(2), .config = toy_config(), .model = model, .steps = 4};
  const Results results = run(e);
  EXPECT_EQ(results[0].skipped, 1U);
  const std::uint64_t psi = 4 * 104;
  const auto across = [&](std::size_t step) {
    return sent_in_step(results, step, {.role = Role::kWeight, .link = 1});
  };
  EXPECT_EQ(across(0), psi);
  EXPECT_EQ(across(1), psi);  // Its forward was the first with these weights.
  EXPECT_EQ(across(2), 0U);   // After the skipped step.
  EXPECT_EQ(across(3), psi);
  // All weight traffic of that step: two gathers inside each of the two groups.
  EXPECT_EQ(sent_in_step(results, 2, kWeights), 2 * 2 * psi);
}

TEST(CodedBytes, AreWhatTheCodecsSay) {
  const ConstantModelConfig model{
      .tensors = {toy_tensor("matrix", {16, 20}), toy_tensor("bias", {24})},
      .gradient = [](const GradPoint& p) { return 1.0F + static_cast<float>(p.element); }};
  Experiment e{.topology = Topology::two_level(2, 2),
               .scheme = at_stage(3),
               .config = toy_config(),
               .model = [&](int) { return constant_model(model); }};
  quantize_weights(e.config, "int8:block=20");
  quantize_gradients(e.config, 2, "int4:block=20");
  const auto across = [&](Role role) {
    quant::WireBytes sum;
    for (const auto& r : run(e)) {
      for (const auto& entry : r.by_step[1].entries()) {
        if (entry.key.call.role == role && entry.key.link == 1) sum += entry.sent.bytes;
      }
    }
    return sum;
  };
  // 320 elements in four chunks of 80, blocks of 20; the bias (24) travels as fp32.
  // Weights: forward and backward, a copy of everything into the other node.
  EXPECT_EQ(across(Role::kWeight),
            (quant::WireBytes{.payload = 2 * 320, .scale = 2 * 16 * 4, .exact = 2 * 24 * 4}));
  // Gradients: what a node has summed for the other one's chunks: 320 elements in all.
  EXPECT_EQ(across(Role::kGradient),
            (quant::WireBytes{.payload = 160, .scale = 16 * 4, .exact = 24 * 4}));
}

// Measuring may not change what is measured, nor count as traffic.
TEST(GradientError, IsMeasuredBesideTheTraffic) {
  Experiment e{.topology = Topology::two_level(2, 4),
               .scheme = at_stage(3),
               .config = toy_config(),
               .steps = 3};
  quantize_gradients(e.config);
  const Results plain = run(e);
  e.config.measure_gradient_error = true;
  const Results measured = run(e);
  expect_same(plain, measured);
  EXPECT_EQ(sent(plain, kGradients), sent(measured, kGradients));
  EXPECT_GT(sent(measured, {.role = Role::kControl}), sent(plain, {.role = Role::kControl}));
  quant::ErrorSums sums;
  for (const auto& r : measured) sums.add(r.steps[0].gradient_error);
  EXPECT_GT(sums.metrics().nmse, 1e-5);
  EXPECT_LT(sums.metrics().nmse, 0.1);
  EXPECT_GT(sums.metrics().cosine, 0.95);
  // Two-dimensional tensors alone are coded; every element of them is measured once.
  EXPECT_EQ(sums.n, 13U * 5 + 2 * 25);
  EXPECT_EQ(plain[0].steps[0].gradient_error.n, 0U);
}

}  // namespace
}  // namespace zeropp::test
