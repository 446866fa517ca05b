#include <gtest/gtest.h>

#include <vector>

#include "quant/error.h"
#include "zero/optimizer.h"

namespace zeropp::zero {
namespace {

// Golden values: DeepSpeed's scheduler classes (lr_schedules.py) run step by step in Python,
// the rate read before every optimizer step.

void expect_rates(const ScheduleConfig& config, double base,
                  const std::vector<double>& expected) {
  for (std::size_t k = 0; k < expected.size(); ++k) {
    EXPECT_NEAR(schedule_lr(config, base, k), expected[k], 1e-15)
        << "after " << k << " updates";
  }
}

TEST(Schedule, NoTypeIsConstant) {
  for (std::uint64_t k : {0, 1, 1'000'000}) EXPECT_EQ(schedule_lr({}, 0.25, k), 0.25);
}

TEST(Schedule, WarmupLog) {
  expect_rates({.type = "WarmupLR",
                .warmup_min_lr = 0.001,
                .warmup_max_lr = 0.009,
                .warmup_num_steps = 4},
               123, {0.001, 0.001, 0.005, 0.007339850002884625, 0.009, 0.009, 0.009});
}

TEST(Schedule, WarmupLinear) {
  expect_rates({.type = "WarmupLR",
                .warmup_min_lr = 0.001,
                .warmup_max_lr = 0.009,
                .warmup_num_steps = 4,
                .warmup_log = false},
               123, {0.001, 0.001, 0.003, 0.005, 0.007, 0.009, 0.009});
}

TEST(Schedule, WarmupOfFewerThanTwoStepsCountsAsTwo) {
  for (std::uint64_t steps : {0, 1, 2}) {
    expect_rates({.type = "WarmupLR", .warmup_max_lr = 1, .warmup_num_steps = steps}, 1,
                 {0, 0, 1, 1, 1});
  }
}

TEST(Schedule, WarmupDecayFallsToZeroAndStaysThere) {
  ScheduleConfig config{.type = "WarmupDecayLR",
                        .warmup_max_lr = 1,
                        .warmup_num_steps = 4,
                        .total_num_steps = 10};
  const std::vector<double> fall = {1, 5.0 / 6, 4.0 / 6, 3.0 / 6, 2.0 / 6, 1.0 / 6, 0, 0, 0};
  std::vector<double> expected = {0, 0, 0.5, 0.7924812503605781, 1};
  expected.insert(expected.end(), fall.begin(), fall.end());
  expect_rates(config, 1, expected);
  config.warmup_log = false;
  expected = {0, 0, 0.25, 0.5, 0.75};
  expected.insert(expected.end(), fall.begin(), fall.end());
  expect_rates(config, 1, expected);
  config.total_num_steps = 3;  // Shorter than the warm-up.
  expect_rates(config, 1, {0, 0, 0.25, 0.5, 0.75, 0, 0, 0});
}

TEST(Schedule, WarmupCosineIsRelativeToTheBaseRate) {
  expect_rates({.type = "WarmupCosineLR",
                .warmup_num_steps = 4,
                .total_num_steps = 10,
                .warmup_log = false,
                .warmup_min_ratio = 0.2,
                .cos_min_ratio = 0.1},
               0.5,
               {0, 0.1, 0.2, 0.3, 0.4, 0.4698557158514987, 0.3875, 0.275, 0.1625,
                0.08014428414850129, 0.05, 0.05, 0.05, 0.05});
  expect_rates({.type = "WarmupCosineLR", .warmup_num_steps = 4, .total_num_steps = 10}, 2,
               {0, 0, 1, 1.5849625007211563, 2, 1.8660388012440603, 1.50005, 1.0001, 0.50015,
                0.13416119875593974, 0.0002});
}

TEST(Schedule, CosineWithoutRoomAfterTheWarmupIsFinite) {
  const ScheduleConfig config{
      .type = "WarmupCosineLR", .warmup_num_steps = 10, .total_num_steps = 10};
  EXPECT_NEAR(schedule_lr(config, 1, 10), 1, 1e-15);
  EXPECT_NEAR(schedule_lr(config, 1, 11), 0.0001, 1e-15);
}

TEST(Schedule, RefusesUnknownTypesAndMissingTotals) {
  EXPECT_THROW(schedule_lr({.type = "OneCycle"}, 1, 0), UsageError);
  EXPECT_THROW(schedule_lr({.type = "WarmupDecayLR"}, 1, 0), UsageError);
  EXPECT_THROW(schedule_lr({.type = "WarmupCosineLR"}, 1, 0), UsageError);
}

}  // namespace
}  // namespace zeropp::zero
