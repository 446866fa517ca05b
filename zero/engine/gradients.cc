#include "zero/engine/gradients.h"

#include <algorithm>

#include "quant/convert.h"
#include "zero/engine/buckets.h"

namespace zeropp::zero {

using hierarchy::ReduceTensor;
using quant::Dtype;
using quant::MemoryKind;
using quant::Tensor;

GradientStore::GradientStore(EngineContext& context, const RouteTable& routes)
    : context_(context), routes_(routes), local_(context.tensors().size()), low_rank_(context) {
  const Dtype grad = context.model.dtype();
  for (std::uint32_t t = 0; t < local_.size(); ++t) {
    const std::size_t n = context.shard_size(t, modulus());
    grads_.emplace_back(&context.memory, MemoryKind::kGrads, grad, n);
    if (context.config.grad_accum != grad) {
      accum_.emplace_back(&context.memory, MemoryKind::kGrads, context.config.grad_accum, n);
    }
  }
  for (int u = context.model.units() - 1; u >= 0; --u) {
    const auto& ended = context.model.unit_grads(u);
    order_.insert(order_.end(), ended.begin(), ended.end());
  }
}

quant::MutView GradientStore::accumulator(std::uint32_t t) {
  return separate_accumulator() ? accum_[t].view() : grads_[t].view();
}
quant::ConstView GradientStore::mean(std::uint32_t t) const {
  return separate_accumulator() ? accum_[t].view() : grads_[t].view();
}

quant::MutView GradientStore::grad(std::uint32_t t) {
  if (at_boundary() && (context_.micro == 0 || separate_accumulator())) return grads_[t].view();
  if (!local_[t]) {
    local_[t] = Tensor(&context_.memory, MemoryKind::kWorkspace, context_.model.dtype(),
                       context_.tensor(t).numel);
  }
  return local_[t].view();
}

void GradientStore::done(std::uint32_t t) {
  if (!at_boundary()) {
    open_.push_back(t);
    return;
  }
  const quant::ConstView x = separate_accumulator() ? grads_[t].view() : local_[t].view();
  if (context_.micro > 0) {
    quant::accumulate(accumulator(t), x);
  } else if (separate_accumulator()) {
    quant::convert(x, accumulator(t));
  }
  local_[t].reset();
}

void GradientStore::after_unit() {
  if (at_boundary() || open_.empty()) return;
  const std::uint64_t limit = context_.config.reduce_bucket;
  const auto numel = [&](std::uint32_t t) { return context_.tensor(t).numel; };
  auto buckets = make_buckets(open_, limit, numel);
  std::uint64_t last = 0;
  for (const std::uint32_t t : buckets.back()) last += numel(t);
  if (last < limit) {  // Still open.
    open_ = std::move(buckets.back());
    buckets.pop_back();
  } else {
    open_.clear();
  }
  for (const auto& bucket : buckets) flush(bucket);
}

void GradientStore::after_backward() {
  if (open_.empty()) return;
  flush(open_);
  open_.clear();
}

void GradientStore::boundary() {
  const ReduceAt when = context_.config.policy.reduce_at;
  if (when == ReduceAt::kMicroStep) return;
  const auto buckets = make_buckets(order_, context_.config.reduce_bucket,
                                    [&](std::uint32_t t) { return context_.tensor(t).numel; });
  for (const auto& bucket : buckets) {
    if (when == ReduceAt::kBoundary) {
      flush(bucket);
      continue;
    }
    std::vector<Tensor> results;  // MiCS: the outermost hop, then back to every group.
    std::vector<ReduceTensor> tensors;
    for (const std::uint32_t t : bucket) {
      results.emplace_back(&context_.memory, MemoryKind::kComm, context_.model.dtype(),
                           grads_[t].size());
      tensors.push_back({.tensor = t,
                         .numel = context_.tensor(t).numel,
                         .in = mean(t),
                         .out = results.back().view(),
                         .codecs = routes_.gradients(t)});
    }
    auto options = call(modulus(), context_.ranks());
    options.algorithm = hierarchy::Algorithm::kHierarchical;
    all_reduce(context_.comm, options, reduce_options(), tensors);
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      quant::convert(results[i].view(), accumulator(bucket[i]));
    }
  }
}

hierarchy::CallOptions GradientStore::call(int coarse, int fine) {
  return {.algorithm = context_.config.algorithm,
          .phase = context_.phase,
          .role = quant::Role::kGradient,
          .coarse = coarse,
          .fine = fine,
          .seed = context_.config.seed,
          .step = context_.step,
          .micro = context_.micro,
          .state = context_.codec_state,
          .underflow = &underflow_};
}

hierarchy::ReduceOptions GradientStore::reduce_options() const {
  const Sabotage s = context_.config.sabotage;
  return {.wire = context_.config.wire,
          .predivide = context_.config.predivide,
          .test_skip_rounding = s == Sabotage::kSkipRounding,
          .test_reverse_order = s == Sabotage::kReverseOrder,
          .test_own_unrounded = s == Sabotage::kOwnUnrounded};
}

void GradientStore::flush(const std::vector<std::uint32_t>& bucket) {
  const StagePolicy& policy = context_.config.policy;
  const int result = policy.all_reduce ? 1 : policy.optimizer;
  const bool overwrites = at_boundary() || context_.micro == 0;
  // An all-reduce at the boundary may work in place, unless its input is needed once more.
  const bool in_place = at_boundary() && policy.all_reduce && !separate_accumulator() &&
                        !context_.config.measure_gradient_error;
  const bool to_micro_step = !at_boundary() && (overwrites || separate_accumulator());
  std::vector<Tensor> temporary;
  temporary.reserve(bucket.size());
  std::vector<ReduceTensor> tensors;
  for (const std::uint32_t t : bucket) {
    quant::MutView out;
    if (result == modulus() && (in_place || to_micro_step)) {
      out = grads_[t].view();
    } else {
      out = temporary
                .emplace_back(&context_.memory, MemoryKind::kComm, context_.model.dtype(),
                              context_.shard_size(t, result))
                .view();
    }
    tensors.push_back({.tensor = t,
                       .numel = context_.tensor(t).numel,
                       .in = at_boundary() ? mean(t) : local_[t].view(),
                       .out = out,
                       .codecs = routes_.gradients(t)});
  }
  std::vector<ReduceTensor> plain, matrices;
  for (const ReduceTensor& x : tensors) {
    (routes_.low_rank(x.tensor) ? matrices : plain).push_back(x);
  }
  if (!plain.empty()) reduce(plain, result);
  if (!matrices.empty()) {
    low_rank_.reduce(matrices, result, loss_scale_, call(1, context_.ranks()),
                     reduce_options());
  }
  if (context_.config.measure_gradient_error) measure(tensors, result);
  for (const ReduceTensor& x : tensors) {
    local_[x.tensor].reset();
    if (x.out.data != accumulator(x.tensor).data) store(x.tensor, x.out, result);
  }
}

void GradientStore::reduce(const std::vector<ReduceTensor>& tensors, int result) {
  const int n = context_.ranks();
  if (result == 1) {
    all_reduce(context_.comm, call(1, n), reduce_options(), tensors);
    return;
  }
  if (result == n || context_.config.policy.reduce_at == ReduceAt::kTwoHop) {
    reduce_scatter(context_.comm, call(1, result), reduce_options(), tensors);
    return;
  }
  // HSDP: inside the group, then an all-to-all and an all-gather between groups. What lies
  // between is in the wire dtype, so exact runs equal one hierarchical reduction bit for bit.
  std::vector<Tensor> partial;
  partial.reserve(tensors.size());
  std::vector<ReduceTensor> inner = tensors, outer = tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    partial.emplace_back(&context_.memory, MemoryKind::kComm, context_.config.wire,
                         tensors[i].out.n);
    inner[i].out = partial.back().view();
    outer[i].in = partial.back().view();
  }
  reduce_scatter(context_.comm, call(1, result), reduce_options(), inner);
  auto options = call(result, n);
  options.algorithm = hierarchy::Algorithm::kHierarchical;
  all_reduce(context_.comm, options, reduce_options(), outer);
}

void GradientStore::store(std::uint32_t t, quant::ConstView x, int from) {
  const bool overwrites = at_boundary() || context_.micro == 0;
  const quant::MutView acc = accumulator(t);
  for_each_piece(context_, t, modulus(), from, [&](const auto& outer, const auto& inner) {
    const auto to = acc.slice(outer.local, outer.size);
    const auto piece = x.slice(inner.local, inner.size);
    if (overwrites) {
      quant::convert(piece, to);
    } else {
      quant::accumulate(to, piece);
    }
  });
}

void GradientStore::measure(const std::vector<ReduceTensor>& tensors, int result) {
  if (context_.config.policy.reduce_at == ReduceAt::kTwoHop) return;  // Means of a group only.
  std::vector<Tensor> exact;
  std::vector<ReduceTensor> coded;
  const auto is_exact = [&](const ReduceTensor& x) {
    return x.codecs.empty() && !routes_.low_rank(x.tensor);
  };
  for (const ReduceTensor& x : tensors) {
    if (is_exact(x)) continue;
    exact.emplace_back(&context_.memory, MemoryKind::kComm, Dtype::kF32,
                       context_.shard_size(x.tensor, context_.ranks()));
    coded.push_back(x);
    coded.back().out = exact.back().view();
    coded.back().codecs = {};
  }
  if (coded.empty()) return;
  auto options = call(1, context_.ranks());
  options.role = quant::Role::kControl;
  options.underflow = nullptr;
  reduce_scatter(context_.comm, options, {}, coded);
  std::size_t i = 0;
  for (const ReduceTensor& x : tensors) {
    if (is_exact(x)) continue;
    for_each_piece(context_, x.tensor, result, context_.ranks(),
                   [&](const auto& outer, const auto&) {
                     error_.add(exact[i].view(), x.out.slice(outer.local, outer.size));
                   });
    ++i;
  }
}

double GradientStore::own_sum_squares() const {
  double sum = 0;
  for (std::uint32_t t = 0; t < grads_.size(); ++t) {
    for_each_piece(context_, t, modulus(), context_.ranks(),
                   [&](const auto& outer, const auto&) {
                     sum += quant::sum_squares(mean(t).slice(outer.local, outer.size));
                   });
  }
  return sum;
}

std::vector<float> GradientStore::own_chunk(std::uint32_t t) const {
  std::vector<float> own(context_.shard_size(t, context_.ranks()));
  narrow_shard(context_, t, mean(t), modulus(), quant::mut_view(own), context_.ranks());
  return own;
}

}  // namespace zeropp::zero
