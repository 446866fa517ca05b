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

/// Cuts this rank's shards out of `parts` runs of each whole tensor.
void OptimizerState::load_parts(const std::vector<std::vector<float>>& tensors,
                                std::size_t parts) {
  const char* area = parts == 1 ? "load_masters" : "load";
  if (tensors.size() != master_.size()) {
    throw UsageError(area, fmt::format("{} tensors", master_.size()),
                     std::to_string(tensors.size()));
  }
  for (std::uint32_t t = 0; t < master_.size(); ++t) {
    const std::size_t n = context_.tensor(t).numel;
    if (tensors[t].size() != parts * n) {
      throw UsageError(area, fmt::format("{} elements of {}", n, context_.tensor(t).name),
                       std::to_string(tensors[t].size() / parts));
    }
    std::size_t part = 0;
    for (auto* kind : {&master_, &m_, &v_}) {
      if (kind->empty()) {
        ++part;
      } else if (part >= parts) {
        (*kind)[t].zero();
      } else {
        narrow_shard(context_, t, quant::view(tensors[t]).slice(part++ * n, n), 1,
                     (*kind)[t].view(), context_.config.policy.optimizer);
      }
    }
  }
}

void OptimizerState::load(const std::vector<std::vector<float>>& tensors) {
  load_parts(tensors, 1);
}
void OptimizerState::load_all(const std::vector<std::vector<float>>& states) {
  load_parts(states, 3);
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
