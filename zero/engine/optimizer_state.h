#pragma once

#include <vector>

#include "zero/engine/context.h"

namespace zeropp::zero {

/// fp32 masters and moments, sharded with the policy's optimizer modulus.
class OptimizerState {
 public:
  explicit OptimizerState(EngineContext& context);

  /// The fixed initial weights, keyed by (seed, tensor, element).
  void initialise();
  /// Masters from whole tensors; moments become zero.
  void load(const std::vector<std::vector<float>>& tensors);
  /// Masters and moments from whole tensors: master | m | v each, as Checkpoint::state.
  void load_all(const std::vector<std::vector<float>>& states);

  /// One update. `grad(t)` is the mean gradient at modulus `grad_modulus`.
  template <class Grad>
  void update(float divisor, double lr, int grad_modulus, Grad grad) {
    const MathTimer timer(context_);
    for (std::uint32_t t = 0; t < master_.size(); ++t) {
      update_tensor(t, grad(t), grad_modulus, divisor, lr);
    }
  }

  quant::ConstView master(std::uint32_t t) const { return master_[t].view(); }
  /// Elements of one chunk of this rank's shard: master, m, v; a missing moment is empty.
  struct Slices {
    quant::ConstView master, m, v;
  };
  Slices slices(std::uint32_t t, std::size_t first, std::size_t count) const;

 private:
  void update_tensor(std::uint32_t t, quant::ConstView grad, int grad_modulus, float divisor,
                     double lr);
  void load_parts(const std::vector<std::vector<float>>& tensors, std::size_t parts);

  EngineContext& context_;
  std::vector<quant::Tensor> master_, m_, v_;
};

/// Does this optimizer keep a first / second moment?
bool has_momentum(const OptimizerConfig& config);
bool has_variance(const OptimizerConfig& config);

}  // namespace zeropp::zero
