#pragma once

namespace zeropp::zero {

/// What every element of one update shares, rounded to fp32 once.
struct UpdateScalars {
  bool sgd = false, decoupled = false;
  float grad_divisor = 1;
  float decay = 0;  ///< Weight decay that is added to the gradient.
  float keep = 1;   ///< 1 - lr * decay, AdamW's factor on the parameter.
  float momentum = 0;
  float beta1 = 0, beta2 = 0, one_minus_beta1 = 0, one_minus_beta2 = 0, eps = 0;
  float step_size = 0;         ///< lr / (1 - beta1^t); lr for SGD.
  float sqrt_correction2 = 1;  ///< sqrt(1 - beta2^t).
};

}  // namespace zeropp::zero
