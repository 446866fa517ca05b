#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "quant/error.h"
#include "zero/optimizer.h"

namespace zeropp::zero {
namespace {

/// Scale before every step; 'x' is an overflow. Golden values are DeepSpeed's update_scale
/// (deepspeed/runtime/fp16/loss_scaler.py) worked by hand.
std::vector<double> scales(const LossScaleConfig& config, const std::string& steps) {
  LossScaler scaler(config);
  std::vector<double> out{scaler.scale()};
  for (char step : steps) {
    scaler.update(step == 'x');
    out.push_back(scaler.scale());
  }
  return out;
}

LossScaleConfig dynamic(int power, int window, int hysteresis) {
  return {.enabled = true,
          .initial_scale_power = power,
          .loss_scale_window = window,
          .hysteresis = hysteresis};
}

using Scales = std::vector<double>;

TEST(LossScaler, StartsAtTwoToThePower) {
  EXPECT_EQ(LossScaler({.enabled = true}).scale(), 65536);
  EXPECT_EQ(LossScaler(dynamic(3, 10, 1)).scale(), 8);
}

TEST(LossScaler, GrowsAfterEachWholeWindow) {
  EXPECT_EQ(scales(dynamic(3, 2, 1), "....."), (Scales{8, 8, 16, 16, 32, 32}));
}

TEST(LossScaler, HalvesAndRestartsTheWindow) {
  // The window counts from the overflow: growth comes `window` steps after it.
  EXPECT_EQ(scales(dynamic(4, 3, 1), "..x...x."), (Scales{16, 16, 16, 8, 8, 8, 16, 8, 8}));
}

TEST(LossScaler, HysteresisForgivesAndIsRenewedByGrowth) {
  EXPECT_EQ(scales(dynamic(4, 2, 2), "xxx..xx"), (Scales{16, 16, 8, 4, 4, 8, 8, 4}));
}

TEST(LossScaler, HysteresisIsUsedUpByScatteredOverflows) {
  EXPECT_EQ(scales(dynamic(4, 9, 2), "x.x.x"), (Scales{16, 16, 16, 8, 8, 4}));
}

TEST(LossScaler, ConsecutiveHysteresisIsRenewedByEveryGoodStep) {
  LossScaleConfig config = dynamic(4, 9, 2);
  config.consecutive_hysteresis = true;
  EXPECT_EQ(scales(config, "x.x.xx"), (Scales{16, 16, 16, 16, 16, 16, 8}));
}

TEST(LossScaler, StopsAtTheMinimum) {
  LossScaleConfig config = dynamic(3, 2, 1);
  config.min_loss_scale = 3;
  LossScaler scaler(config);
  EXPECT_FALSE(scaler.at_minimum());
  scaler.update(true);
  EXPECT_FALSE(scaler.at_minimum());
  for (int i = 0; i < 3; ++i) {
    scaler.update(true);
    EXPECT_EQ(scaler.scale(), 3);
    EXPECT_TRUE(scaler.at_minimum());
  }
  EXPECT_EQ(scales(config, "xxx.."), (Scales{8, 4, 3, 3, 3, 6}));
}

TEST(LossScaler, StaticAndOffNeverMove) {
  LossScaleConfig fixed = dynamic(16, 1, 1);
  fixed.loss_scale = 128;
  EXPECT_EQ(scales(fixed, "x..x"), (Scales{128, 128, 128, 128, 128}));
  fixed.loss_scale = 1;
  EXPECT_FALSE(LossScaler(fixed).at_minimum());
  LossScaleConfig off = dynamic(16, 1, 1);
  off.enabled = false;
  EXPECT_EQ(scales(off, "x..x"), (Scales{1, 1, 1, 1, 1}));
  EXPECT_FALSE(LossScaler(off).at_minimum());
}

TEST(LossScaler, RefusesNonsense) {
  const auto refused = [](auto change) {
    LossScaleConfig config{.enabled = true};
    change(config);
    EXPECT_THROW(LossScaler{config}, UsageError);
    config.enabled = false;  // Ignored where there is no loss scale.
    EXPECT_NO_THROW(LossScaler{config});
  };
  refused([](auto& c) { c.loss_scale = -1; });
  refused([](auto& c) { c.loss_scale = std::numeric_limits<double>::quiet_NaN(); });
  refused([](auto& c) { c.loss_scale = std::numeric_limits<double>::infinity(); });
  refused([](auto& c) { c.initial_scale_power = -1; });
  refused([](auto& c) { c.loss_scale_window = 0; });
  refused([](auto& c) { c.hysteresis = 0; });
  refused([](auto& c) { c.min_loss_scale = 0; });
}

}  // namespace
}  // namespace zeropp::zero
