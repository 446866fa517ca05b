// What outlives a pass: the replicas of stages 1 and 2 and the secondaries, and their use as
// the reference of differences.

#include <fmt/format.h>

#include <algorithm>

#include "quant/convert.h"
#include "quant/error.h"
#include "zero/engine/buckets.h"
#include "zero/engine/initial_weights.h"
#include "zero/engine/replicas.h"
#include "zero/engine/weights.h"

namespace zeropp::zero {

using quant::MemoryKind;
using quant::Tensor;

int WeightStore::copy_modulus() const {
  const StagePolicy& policy = context_.config.policy;
  return secondary_.empty() ? policy.params : policy.secondary;
}

void WeightStore::initialise() {
  if (routes_.codes_differences()) {
    for (std::uint32_t t = 0; t < params_.size(); ++t) {
      initial_weights(context_, t, copy_modulus(), copies()[t].view());
      copy_version_[t] = static_cast<std::int64_t>(context_.version);
    }
  }
  refresh();
}

void WeightStore::refresh() {
  const StagePolicy& policy = context_.config.policy;
  if (policy.params == policy.optimizer) {
    round_params();
  } else {
    gather_params();
  }
  if (context_.config.check_replicas) check_params();
}

void WeightStore::round_params() {
  const MathTimer timer(context_);  // Rounding the masters belongs to the update.
  for (std::uint32_t t = 0; t < params_.size(); ++t) {
    quant::convert(state_.master(t), params_[t].view());
  }
}

void WeightStore::check_params() {
  const int modulus = context_.config.policy.params;
  if (modulus == 1) diverge_on_purpose(params_);
  std::vector<quant::ConstView> views;
  for (auto& p : params_) views.push_back(p.view());
  check_replicas(context_, "weights after the step", modulus, views);
}

void WeightStore::gather_params() {
  const auto version = static_cast<std::int64_t>(context_.version);
  std::vector<std::uint32_t> order;
  for (std::uint32_t t = 0; t < params_.size(); ++t) {
    if (copy_version_[t] != version) order.push_back(t);
  }
  const auto buckets = make_buckets(order, context_.config.gather_bucket,
                                    [&](std::uint32_t t) { return context_.tensor(t).numel; });
  const StagePolicy& policy = context_.config.policy;
  for (const auto& bucket : buckets) {
    std::vector<Update> updates;
    std::vector<hierarchy::GatherTensor> tensors;
    for (const std::uint32_t t : bucket) {
      unreferenced_ += lacks_reference(t) ? 1 : 0;
      const Update& update = updates.emplace_back(update_of(t));
      tensors.push_back({.tensor = t,
                         .numel = context_.tensor(t).numel,
                         .shard = update.shard.view(),
                         .out = params_[t].view(),
                         .codec = update.codec});
    }
    all_gather(context_.comm, context_.weight_call(policy.params, policy.optimizer), tensors);
    for (const std::uint32_t t : bucket) copy_version_[t] = version;
  }
}

WeightStore::Update WeightStore::update_of(std::uint32_t t) const {
  if (!routes_.difference(t)) return {rounded_master(t), routes_.weights(t)};
  if (lacks_reference(t)) return {rounded_master(t), nullptr};
  return {difference(t), routes_.weights(t)};
}

bool WeightStore::lacks_reference(std::uint32_t t) const {
  return routes_.difference(t) && copy_version_[t] < 0 && context_.tensor(t).numel > 0;
}

Tensor WeightStore::rounded_master(std::uint32_t t) const {
  Tensor shard(&context_.memory, MemoryKind::kComm, context_.model.dtype(), state_.master(t).n);
  quant::convert(state_.master(t), shard.view());
  return shard;
}

Tensor WeightStore::difference(std::uint32_t t) const {
  const quant::ConstView master = state_.master(t);
  Tensor d(&context_.memory, MemoryKind::kComm, quant::Dtype::kF32, master.n);
  narrow_shard(context_, t, copies()[t].view(), copy_modulus(), d.view(),
               context_.config.policy.optimizer);
  const auto* m = static_cast<const float*>(master.data);
  float* x = d.f32();
  for (std::size_t i = 0; i < master.n; ++i) x[i] = m[i] - x[i];
  return d;
}

void WeightStore::invalidate_copies() {
  std::fill(copy_version_.begin(), copy_version_.end(), -1);
}

void WeightStore::set_reference(const WeightReference& reference) {
  if (reference.tensors.size() != params_.size() ||
      reference.versions.size() != params_.size()) {
    throw UsageError("load_masters", fmt::format("a reference of {} tensors", params_.size()),
                     fmt::format("{} tensors, {} versions", reference.tensors.size(),
                                 reference.versions.size()));
  }
  for (std::uint32_t t = 0; t < params_.size(); ++t) {
    if (reference.versions[t] < 0) continue;
    if (reference.tensors[t].size() != context_.tensor(t).numel) {
      throw UsageError("load_masters",
                       fmt::format("{} elements of the reference of {}",
                                   context_.tensor(t).numel, context_.tensor(t).name),
                       std::to_string(reference.tensors[t].size()));
    }
    narrow_shard(context_, t, quant::view(reference.tensors[t]), 1, copies()[t].view(),
                 copy_modulus());
    copy_version_[t] = reference.versions[t];
  }
}

bool WeightStore::has_current_secondary() const {
  const auto version = static_cast<std::int64_t>(context_.version);
  return !secondary_.empty() &&
         std::find(copy_version_.begin(), copy_version_.end(), version) != copy_version_.end();
}

std::vector<float> WeightStore::copy_chunk(std::uint32_t t) const {
  std::vector<float> chunk(context_.shard_size(t, context_.ranks()));
  narrow_shard(context_, t, copies()[t].view(), copy_modulus(), quant::mut_view(chunk),
               context_.ranks());
  return chunk;
}

}  // namespace zeropp::zero
