#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quant/error.h"
#include "zero/optimizer.h"

namespace zeropp::zero {
namespace {

constexpr double kFactor = 2;  // DeepSpeed's scale_factor, not configurable there either.

void require(bool ok, const char* key, const char* expected, double found) {
  if (!ok) {
    throw UsageError("fp16", fmt::format("{} {}", key, expected), fmt::format("{}", found));
  }
}

void check(const LossScaleConfig& c) {
  require(std::isfinite(c.loss_scale) && c.loss_scale >= 0, "loss_scale",
          "finite and >= 0 (0 = dynamic)", c.loss_scale);
  require(c.initial_scale_power >= 0 && c.initial_scale_power <= 126, "initial_scale_power",
          "in 0..126", c.initial_scale_power);
  require(c.loss_scale_window >= 1, "loss_scale_window", ">= 1", c.loss_scale_window);
  require(c.hysteresis >= 1, "hysteresis", ">= 1", c.hysteresis);
  require(std::isfinite(c.min_loss_scale) && c.min_loss_scale > 0, "min_loss_scale",
          "finite and > 0", c.min_loss_scale);
}

}  // namespace

LossScaler::LossScaler(const LossScaleConfig& config)
    : config_(config), state_{.hysteresis = config.hysteresis} {
  if (!config_.enabled) return;
  check(config_);
  state_.scale = config_.loss_scale != 0 ? config_.loss_scale
                                         : std::ldexp(1.0, config_.initial_scale_power);
}

void LossScaler::update(bool overflow) {
  if (!config_.enabled || config_.loss_scale != 0) return;
  if (overflow) {
    if (state_.hysteresis == 1) {
      state_.scale = std::max(state_.scale / kFactor, config_.min_loss_scale);
    } else {
      --state_.hysteresis;
    }
    state_.last_overflow = state_.iteration;
  } else {
    if (config_.consecutive_hysteresis) state_.hysteresis = config_.hysteresis;
    if ((state_.iteration - state_.last_overflow) % config_.loss_scale_window == 0) {
      state_.hysteresis = config_.hysteresis;
      state_.scale *= kFactor;
    }
  }
  ++state_.iteration;
}

bool LossScaler::at_minimum() const {
  return config_.enabled && config_.loss_scale == 0 && state_.scale <= config_.min_loss_scale;
}

}  // namespace zeropp::zero
