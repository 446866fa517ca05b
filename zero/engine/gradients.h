#pragma once

#include <vector>

#include "zero/engine/context.h"
#include "zero/engine/low_rank.h"
#include "zero/engine/routes.h"

namespace zeropp::zero {

/// One rank's gradients: where backward writes them, their reduction in buckets and their
/// accumulation over micro-steps, as the policy says.
///
/// Accumulation is acc = round(acc + x) in grad_accum_dtype, the first one writes. When that
/// dtype is not the gradient's there are two buffers, else one.
class GradientStore : public GradSink {
 public:
  GradientStore(EngineContext& context, const RouteTable& routes);

  quant::MutView grad(std::uint32_t tensor) override;
  void done(std::uint32_t tensor) override;

  /// Reduces what `done` has filled buckets with; call after each unit's backward.
  void after_unit();
  /// Reduces the rest of the micro-step.
  void after_backward();
  /// At the accumulation boundary: what the policy left to be reduced.
  void boundary();

  /// Mean gradient, valid on (at least) the chunks of the optimizer's modulus.
  quant::ConstView mean(std::uint32_t tensor) const;
  int modulus() const { return context_.config.policy.grads; }
  /// Sum of squares over this rank's own world chunks, in double, tensors in canonical order.
  double own_sum_squares() const;
  /// This rank's own world chunk of the mean, in fp32.
  std::vector<float> own_chunk(std::uint32_t tensor) const;

  void begin_step(double loss_scale) {
    error_ = {};
    underflow_ = 0;
    loss_scale_ = static_cast<float>(loss_scale);
  }
  /// The step was applied, or skipped: PowerSGD's state follows it.
  void end_step(bool applied) { applied ? low_rank_.commit() : low_rank_.rollback(); }
  /// The weights were replaced.
  void forget() { low_rank_.forget(); }
  LowRankState low_rank_state() const { return low_rank_.state(); }
  void restore_low_rank(const LowRankState& state) { low_rank_.restore(state); }
  const quant::ErrorSums& error() const { return error_; }
  std::uint64_t underflow() const { return underflow_; }

 private:
  bool at_boundary() const { return context_.config.policy.reduce_at == ReduceAt::kBoundary; }
  bool separate_accumulator() const { return !accum_.empty(); }
  quant::MutView accumulator(std::uint32_t tensor);
  void flush(const std::vector<std::uint32_t>& bucket);
  void reduce(const std::vector<hierarchy::ReduceTensor>& tensors, int result);
  void store(std::uint32_t tensor, quant::ConstView x, int from);
  void measure(const std::vector<hierarchy::ReduceTensor>& tensors, int result);
  hierarchy::CallOptions call(int coarse, int fine);
  hierarchy::ReduceOptions reduce_options() const;

  EngineContext& context_;
  const RouteTable& routes_;
  std::vector<quant::Tensor> grads_, accum_;  ///< Modulus policy.grads.
  std::vector<quant::Tensor> local_;          ///< Whole gradients that wait to be reduced.
  std::vector<std::uint32_t> open_;           ///< Done, not yet reduced, in order.
  std::vector<std::uint32_t> order_;          ///< The order in which backward ends tensors.
  LowRank low_rank_;
  float loss_scale_ = 1;
  quant::ErrorSums error_;
  std::uint64_t underflow_ = 0;
};

}  // namespace zeropp::zero
