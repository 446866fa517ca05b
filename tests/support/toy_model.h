#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero/model.h"

// Two models whose arithmetic fits on a page, so that tests can know every gradient.
namespace zeropp::test {

/// A tensor of a toy model; numel is the product of the shape (1 for an empty one).
zero::TensorSpec toy_tensor(std::string name, std::vector<std::size_t> shape,
                            zero::InitKind init = zero::InitKind::kNormal, double std = 0.5);

/// Where a constant gradient is asked for. `pass` counts this rank's training micro-steps.
struct GradPoint {
  int pass = 0;
  std::uint32_t tensor = 0;
  std::size_t element = 0;
};

/// Gradients are what the test says, whatever the weights. The loss is the sum of all weights
/// in fp32 precision (a tied one twice), so it shows which bits a forward saw. Every use of a
/// weight checks that it is whole and, in backward, that it has the bits of the forward.
struct ConstantModelConfig {
  std::vector<zero::TensorSpec> tensors = {};
  std::vector<std::vector<std::uint32_t>> units = {};  ///< Empty: a unit a tensor.
  quant::Dtype dtype = quant::Dtype::kF32;
  /// The unscaled gradient of a micro-step, as if GAS were 1; the run multiplies grad_scale.
  std::function<float(const GradPoint&)> gradient = {};
  bool check_backward = true;  ///< Off where a test feeds backward other weights on purpose.
};
std::unique_ptr<zero::Model> constant_model(ConstantModelConfig config);

/// A linear model with a head tied to its embedding, or not:
///   x = E[token];  per layer x = W x + b (+ s * (c * x) while the branch is active)
///   loss = mean over targets of (H[target] . (x + e) - 1)^2 / 2
/// Layer 0 also has two tensors without elements, [0] and [8, 0, 24]. An inactive branch gives
/// gradients of zero. Sums are plain fp32 loops in a fixed order.
struct TiedMlpConfig {
  int vocab = 13;
  int width = 5;
  int layers = 2;
  bool tied = true;
  quant::Dtype dtype = quant::Dtype::kF32;
  /// Is the branch active in this rank's training micro-step `pass`? Null: always.
  std::function<bool(int pass)> branch = {};
};
std::unique_ptr<zero::Model> tied_mlp(TiedMlpConfig config = {});

}  // namespace zeropp::test
