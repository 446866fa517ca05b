#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quant/dtype.h"

namespace zeropp::zero {

enum class OptimizerKind : std::uint8_t {
  kAdamW,
  kAdam,
  kSgd
};  ///< kAdam: L2 in the gradient.

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double momentum = 0;  ///< SGD.
  bool bias_correction = true;
  bool decay_1d = true;  ///< Weight decay on 1-D tensors too, as torch's AdamW does.
};
OptimizerKind parse_optimizer(std::string_view type, bool adam_w_mode);

/// One applied update of n elements, elementwise in fp32, the same bits whatever the split.
/// g = grad / grad_divisor (loss scale times clip), then the rule. `t` counts from 1.
/// v may be null for SGD, m too when momentum is 0.
struct OptimizerArgs {
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  quant::ConstView grad;
  float grad_divisor = 1;
  double lr = 0;
  double weight_decay = 0;
  std::uint64_t t = 1;
};
void optimizer_update(const OptimizerConfig& config, const OptimizerArgs& args);

/// DeepSpeed's WarmupLR, WarmupDecayLR and WarmupCosineLR, or a constant. `lr(k)` is the rate
/// of the update that follows k applied updates (zero/schedule.cc has the off-by-ones).
struct ScheduleConfig {
  std::string type;  ///< "" = constant.
  double warmup_min_lr = 0, warmup_max_lr = 0.001;
  std::uint64_t warmup_num_steps = 1000, total_num_steps = 0;
  bool warmup_log = true;  ///< warmup_type "log" (DeepSpeed's default) or "linear".
  double warmup_min_ratio = 0,
         cos_min_ratio = 0.0001;  ///< WarmupCosineLR, relative to base lr.
};
double schedule_lr(const ScheduleConfig& config, double base_lr, std::uint64_t applied);

/// fp16 loss scale, DeepSpeed's DynamicLossScaler with its defaults (static if loss_scale !=
/// 0).
struct LossScaleConfig {
  bool enabled = false;
  double loss_scale = 0;
  int initial_scale_power = 16;
  int loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};
class LossScaler {
 public:
  explicit LossScaler(const LossScaleConfig& config);
  double scale() const { return state_.scale; }
  /// After a step: overflow says whether it was skipped.
  void update(bool overflow);
  bool at_minimum() const;

  /// What a checkpoint keeps.
  struct State {
    double scale = 1;
    std::int64_t iteration = 0, last_overflow = -1;
    int hysteresis = 1;
  };
  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  LossScaleConfig config_;
  State state_;
};

}  // namespace zeropp::zero
