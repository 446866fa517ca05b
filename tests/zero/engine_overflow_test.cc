// Non-finite gradients: every rank skips, nothing moves, everything is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/error.h"
#include "tests/support/spawn.h"
#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using quant::Dtype;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A gradient of 0.5, but `value` at one element of one tensor on one rank in one micro-step.
struct Fault {
  float value = kInf;
  int rank = 2;
  std::uint32_t tensor = 0;
  std::size_t element = 0;
  std::vector<int> passes = {1};
};
std::function<std::unique_ptr<zero::Model>(int)> faulty(Fault fault,
                                                        Dtype dtype = Dtype::kF32) {
  return [fault, dtype](int rank) {
    ConstantModelConfig c{.tensors = {toy_tensor("matrix", {9, 11}), toy_tensor("bias", {5}),
                                      toy_tensor("none", {0})},
                          .dtype = dtype};
    c.gradient = [fault, rank](const GradPoint& p) {
      const bool here = rank == fault.rank && p.tensor == fault.tensor &&
                        p.element == fault.element &&
                        std::count(fault.passes.begin(), fault.passes.end(), p.pass) > 0;
      return here ? fault.value : 0.5F;
    };
    return constant_model(c);
  };
}

TEST(Overflow, OnOneRankSkipsTheStepOnAll) {
  for (const auto& scheme : schemes(2)) {
    for (const bool coded : {false, true}) {
      for (const float value : {kInf, -kInf, kNan}) {
        for (const Fault& fault :
             {Fault{.value = value, .rank = 0}, Fault{.value = value, .rank = 3, .element = 50},
              Fault{.value = value, .rank = 1, .element = 98},
              Fault{.value = value, .tensor = 1, .element = 4}}) {
          SCOPED_TRACE(testing::Message()
                       << scheme.name << " coded " << coded << " " << value << " rank "
                       << fault.rank << " element " << fault.element);
          Experiment e{.scheme = scheme.request,
                       .config = toy_config(),
                       .model = faulty(fault),
                       .steps = 3};
          if (coded) quantize_gradients(e.config);
          const Results results = run(e);
          for (const auto& r : results) {
            EXPECT_FALSE(r.steps[0].skipped);
            EXPECT_TRUE(r.steps[1].skipped);
            EXPECT_FALSE(std::isfinite(r.steps[1].grad_norm));
            EXPECT_FALSE(r.steps[2].skipped);
            EXPECT_EQ(r.applied, 2U);
            EXPECT_EQ(r.skipped, 1U);
          }
          EXPECT_EQ(results[0].hashes[1], results[0].hashes[0]);  // Not an element moved.
          EXPECT_NE(results[0].hashes[2], results[0].hashes[1]);
          // The third step sees the second's weights again, finite and unpoisoned.
          EXPECT_EQ(results[0].steps[2].loss, results[0].steps[1].loss);
          for (const auto& tensor : results[0].state) {
            for (const float x : tensor) ASSERT_TRUE(std::isfinite(x));
          }
        }
      }
    }
  }
}

TEST(Overflow, InOneMicroStepOfManySkipsTheStep) {
  for (const auto& scheme : schemes(2)) {
    for (const int pass : {0, 1, 3}) {
      SCOPED_TRACE(testing::Message() << scheme.name << " pass " << pass);
      Experiment e{.scheme = scheme.request,
                   .config = toy_config(),
                   .model = faulty({.passes = {4 + pass}}),
                   .steps = 3};
      e.config.gas = 4;
      const Results results = run(e);
      EXPECT_FALSE(results[0].steps[0].skipped);
      EXPECT_TRUE(results[0].steps[1].skipped);
      EXPECT_FALSE(results[0].steps[2].skipped);
    }
  }
}

TEST(Overflow, FreezesTheSchedule) {
  Experiment e{.scheme = at_stage(3),
               .config = toy_config(),
               .model = faulty({.passes = {2, 3}}),
               .steps = 6};
  e.config.schedule = {
      .type = "WarmupLR", .warmup_max_lr = 1.0, .warmup_num_steps = 10, .warmup_log = false};
  const Results results = run(e);
  std::vector<double> lr;
  for (const auto& s : results[0].steps) lr.push_back(s.lr);
  const auto at = [&](std::uint64_t applied) {
    return zero::schedule_lr(e.config.schedule, e.config.optimizer.lr, applied);
  };
  EXPECT_THAT(lr, testing::ElementsAre(at(0), at(1), at(2), at(2), at(2), at(3)));
  EXPECT_LT(at(2), at(3));
}

// A step that was skipped leaves no trace in the optimizer: as if it had not been.
TEST(Overflow, LeavesNoTraceInTheOptimizer) {
  Experiment e{.scheme = at_stage(2),
               .config = toy_config(),
               .model = faulty({.passes = {1, 2}}),
               .steps = 5};
  const Results with = run(e);
  e.model = faulty({.passes = {}});
  e.steps = 3;
  const Results without = run(e);
  EXPECT_EQ(with[0].hashes.back(), without[0].hashes.back());
}

std::vector<double> scales(const Results& results) {
  std::vector<double> all;
  for (const auto& s : results[0].steps) all.push_back(s.loss_scale);
  return all;
}

TEST(LossScale, FollowsDeepSpeedsSchedule) {
  Experiment e{.scheme = at_stage(1),
               .config = toy_config(),
               .model = faulty({.passes = {2, 3}}),
               .steps = 8};
  e.config.loss_scale = {
      .enabled = true, .initial_scale_power = 4, .loss_scale_window = 2, .hysteresis = 1};
  // Doubled when (iteration - last overflow) % 2 == 0, the last overflow counting as -1 at
  // first.
  EXPECT_THAT(scales(run(e)), testing::ElementsAre(16, 16, 32, 16, 8, 8, 16, 16));
  e.config.loss_scale.hysteresis = 2;  // The first overflow is forgiven.
  EXPECT_THAT(scales(run(e)), testing::ElementsAre(16, 16, 32, 32, 16, 16, 32, 32));
}

// Gradients of 100 in fp16: 65536 and all scales down to 1024 overflow, 512 does not.
TEST(LossScale, FindsTheLargestThatFits) {
  for (const auto& scheme : schemes(2)) {
    SCOPED_TRACE(scheme.name);
    Experiment e{.scheme = scheme.request, .config = toy_config(), .steps = 9};
    e.model = [](int) {
      return constant_model({.tensors = {toy_tensor("a", {33})},
                             .dtype = Dtype::kF16,
                             .gradient = [](const GradPoint&) { return 100.0F; }});
    };
    e.config.wire = e.config.grad_accum = Dtype::kF16;
    e.config.loss_scale = {.enabled = true, .hysteresis = 1};
    const Results results = run(e);
    EXPECT_EQ(results[0].skipped, 7U);
    EXPECT_EQ(results[0].applied, 2U);
    EXPECT_EQ(scales(results).back(), 512);
    EXPECT_DOUBLE_EQ(results[0].steps.back().grad_norm, 100 * std::sqrt(33.0));  // Unscaled.
  }
}

// The scale divides out: a power of two changes no bit of an fp32 run.
TEST(LossScale, ChangesNoBitWhereNothingRounds) {
  Experiment e{.scheme = at_stage(2), .config = toy_config(), .steps = 3};
  e.config.clip = 0.1;
  const Results off = run(e);
  e.config.loss_scale = {.enabled = true, .loss_scale = 1024};
  expect_same(off, run(e));
}

TEST(EndlessSkips, EndWithAClearError) {
  Experiment e{.scheme = at_stage(3),
               .config = toy_config(),
               .model = faulty({.passes = {1, 3, 4, 5, 6, 7}}),
               .steps = 20};
  e.config.max_consecutive_skips = 3;
  const std::string text = error_of<std::exception>([&] { run(e); });
  EXPECT_THAT(text, testing::HasSubstr("3 steps in a row"));
  EXPECT_THAT(text, testing::HasSubstr("non-finite gradient"));
  EXPECT_THAT(text, testing::HasSubstr("step 5"));  // Not 1: step 2 was good.
  e.config.max_consecutive_skips = 6;               // Five in a row are survived.
  e.steps = 9;
  const Results results = run(e);
  EXPECT_EQ(results[0].skipped, 6U);
  EXPECT_EQ(results[0].applied, 3U);
}

}  // namespace
}  // namespace zeropp::test
