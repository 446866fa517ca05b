// DeepSpeed's learning-rate schedules (deepspeed/runtime/lr_schedules.py).
//
// DeepSpeed steps its scheduler after every applied update (not after a skipped one), and its
// counter starts at -1. So the update that follows k applied updates uses
//   k = 0   the initial rate: warmup_min_lr for WarmupLR and WarmupDecayLR, 0 for
//   WarmupCosineLR; k >= 1  the formula at iteration i = k - 1.
// Two updates therefore run at the bottom of the warm-up (the formulas give the bottom at i = 0
// too), and the top is reached by the update after warmup_num_steps applied ones: i = w - 1
// gives log(w)/log(w) = 1 for "log", and i = w for "linear", one update later. warmup_num_steps
// below 2 counts as 2, as there: 1/log(1) would divide by zero.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "quant/error.h"
#include "zero/optimizer.h"

namespace zeropp::zero {
namespace {

/// Warm-up progress in [0, 1] at iteration i < w.
double warmup(const ScheduleConfig& c, double i, double w) {
  return c.warmup_log ? 1.0 / std::log(w) * std::log(i + 1) : i / w;
}

double warmup_lr(const ScheduleConfig& c, double i, double w, bool decay) {
  double gamma = 1;
  if (i < w) {
    gamma = warmup(c, i, w);
  } else if (decay) {
    const auto total = static_cast<double>(c.total_num_steps);
    gamma = std::max(0.0, (total - i) / std::max(1.0, total - w));
  }
  return c.warmup_min_lr + (c.warmup_max_lr - c.warmup_min_lr) * gamma;
}

double cosine_ratio(const ScheduleConfig& c, double i, double w) {
  if (i < w) return c.warmup_min_ratio + warmup(c, i, w) * (1 - c.warmup_min_ratio);
  // DeepSpeed goes back up the cosine after total_num_steps; here the rate stays at the bottom.
  const double total = std::max(1.0, static_cast<double>(c.total_num_steps) - w);
  const double done = std::min(i - w + 1, total);
  const double wave = (1 + std::cos(std::numbers::pi * done / total)) / 2;
  return std::max(0.0, c.cos_min_ratio + (1 - c.cos_min_ratio) * wave);
}

}  // namespace

double schedule_lr(const ScheduleConfig& config, double base_lr, std::uint64_t applied) {
  if (config.type.empty()) return base_lr;
  const bool plain = config.type == "WarmupLR";
  const bool decay = config.type == "WarmupDecayLR";
  const bool cosine = config.type == "WarmupCosineLR";
  if (!plain && !decay && !cosine) {
    throw UsageError("scheduler", "type WarmupLR, WarmupDecayLR or WarmupCosineLR",
                     "'" + config.type + "'");
  }
  if (!plain && config.total_num_steps == 0) {
    throw UsageError("scheduler", fmt::format("total_num_steps > 0 for {}", config.type), "0");
  }
  if (applied == 0) return cosine ? 0.0 : config.warmup_min_lr;
  const auto i = static_cast<double>(applied - 1);
  const auto w = static_cast<double>(std::max<std::uint64_t>(2, config.warmup_num_steps));
  return cosine ? base_lr * cosine_ratio(config, i, w) : warmup_lr(config, i, w, decay);
}

}  // namespace zeropp::zero
