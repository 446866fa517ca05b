#include "zero/engine/optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "quant/error.h"
#include "zero/engine/initial_weights.h"

namespace zeropp::zero {

using quant::Dtype;
using quant::MemoryKind;

bool has_momentum(const OptimizerConfig& config) {
  return config.kind != OptimizerKind::kSgd || config.momentum != 0;
}
bool has_variance(const OptimizerConfig& config) { return config.kind != OptimizerKind::kSgd; }

OptimizerState::OptimizerState(EngineContext& context) : context_(context) {
  const int modulus = context.config.policy.optimizer;
  for (std::uint32_t t = 0; t < context.tensors().size(); ++t) {
    const std::size_t n = context.shard_size(t, modulus);
    master_.emplace_back(&context.memory, MemoryKind::kMaster, Dtype::kF32, n);
    if (has_momentum(context.config.optimizer)) {
      m_.emplace_back(&context.memory, MemoryKind::kMomentum, Dtype::kF32, n).zero();
    }
    if (has_variance(context.config.optimizer)) {
      v_.emplace_back(&context.memory, MemoryKind::kVariance, Dtype::kF32, n).zero();
    }
  }
}

void OptimizerState::initialise() {
  for (std::uint32_t t = 0; t < master_.size(); ++t) {
    initial_weights(context_, t, context_.config.policy.optimizer, master_[t].view());
  }
}

void OptimizerState::load(const std::vector<std::vector<float>>& tensors) {
  if (tensors.size() != master_.size()) {
    throw UsageError("load_masters", fmt::format("{} tensors", master_.size()),
                     std::to_string(tensors.size()));
  }
  for (std::uint32_t t = 0; t < master_.size(); ++t) {
    if (tensors[t].size() != context_.tensor(t).numel) {
      throw UsageError(
          "load_masters",
          fmt::format("{} elements of {}", context_.tensor(t).numel, context_.tensor(t).name),
          std::to_string(tensors[t].size()));
    }
    narrow_shard(context_, t, quant::view(tensors[t]), 1, master_[t].view(),
                 context_.config.policy.optimizer);
  }
  for (auto& m : m_) m.zero();
  for (auto& v : v_) v.zero();
}

OptimizerState::Slices OptimizerState::slices(std::uint32_t t, std::size_t first,
                                              std::size_t count) const {
  return {.master = master_[t].view().slice(first, count),
          .m = m_.empty() ? quant::ConstView{} : m_[t].view().slice(first, count),
          .v = v_.empty() ? quant::ConstView{} : v_[t].view().slice(first, count)};
}

void OptimizerState::update_tensor(std::uint32_t t, quant::ConstView grad, int grad_modulus,
                                   float divisor, double lr) {
  const OptimizerConfig& config = context_.config.optimizer;
  const TensorSpec& spec = context_.tensor(t);
  if (!spec.trainable) return;
  const bool decays = config.decay_1d || spec.shape.size() > 1;
  for_each_piece(context_, t, grad_modulus, context_.config.policy.optimizer,
                 [&](const auto& outer, const auto& inner) {
                   if (inner.size == 0) return;
                   optimizer_update(config,
                                    {.master = master_[t].f32() + inner.local,
                                     .m = m_.empty() ? nullptr : m_[t].f32() + inner.local,
                                     .v = v_.empty() ? nullptr : v_[t].f32() + inner.local,
                                     .grad = grad.slice(outer.local, outer.size),
                                     .grad_divisor = divisor,
                                     .lr = lr,
                                     .weight_decay = decays ? config.weight_decay : 0,
                                     .t = context_.updates + 1});
                 });
}

}  // namespace zeropp::zero
