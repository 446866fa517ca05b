#include <algorithm>
#include <string>
#include <vector>

#include "quant/convert.h"
#include "quant/error.h"
#include "zero/gpt.h"
#include "zero/ops/ops.h"

namespace zeropp::zero {
namespace {

using quant::ConstView;
using quant::Dtype;
using quant::MemoryKind;
using quant::MutView;
using quant::Tensor;

/// What a block's backward needs beside the residual stream. c = width, per token.
struct BlockActivations {
  Tensor ln_1, ln_2;      ///< [c] normalized inputs of the two halves
  Tensor qkv, attention;  ///< [3c], [c]
  Tensor fc, gelu;        ///< [4c] before and after the nonlinearity
  Tensor moments;         ///< fp32: mean and rstd of ln_1, then of ln_2
  Tensor softmax;         ///< fp32 row statistics
};

class GptRun final : public ModelRun {
 public:
  GptRun(const GptConfig& config, quant::MemoryTracker* memory)
      : config_(config), ids_(config), ctx_(memory) {}

  void begin(const Batch& batch, bool training, float grad_scale) override;
  void forward(int unit, WeightSource& weights) override;
  double loss() const override { return loss_; }
  void backward(int unit, WeightSource& weights, GradSink& grads) override;
  void end() override;

 private:
  std::size_t width() const { return static_cast<std::size_t>(config_.width); }
  std::size_t vocab() const { return static_cast<std::size_t>(config_.vocab); }
  std::size_t rows() const { return batch_ * seq_; }
  int last() const { return config_.layers + 1; }

  void check(const Batch& batch) const;
  void size_buffers();
  /// Reuses the buffer if it is large enough.
  void size(Tensor& t, Dtype dtype, std::size_t n) {
    if (t && t.dtype() == dtype && t.size() >= n) return;
    t.reset();
    t = Tensor(ctx_.memory(), MemoryKind::kActivation, dtype, n);
  }
  /// The first rows() * cols elements as a view.
  MutView part(Tensor& t, std::size_t cols) { return t.view().slice(0, rows() * cols); }
  /// Residual stream before half-block i (2 a block); without backward two buffers take turns.
  MutView stream(int i) {
    return part(
        stream_[training_ ? static_cast<std::size_t>(i) : static_cast<std::size_t>(i % 2)],
        width());
  }
  BlockActivations& block(int layer) {
    return blocks_[training_ ? static_cast<std::size_t>(layer) : 0];
  }
  ops::AttentionShape attention_shape() const {
    const auto heads = static_cast<std::size_t>(config_.heads);
    return {batch_, seq_, heads, width() / heads};
  }
  ops::EmbeddingShape embedding_shape() const {
    return {batch_, seq_, width(), vocab(), static_cast<std::size_t>(config_.context)};
  }
  ops::CrossEntropy cross_entropy() const { return {logits_.f32(), targets_, rows(), vocab()}; }

  void linear(ConstView x, ConstView weight, ConstView bias, MutView y);
  void linear_backward(ConstView x, MutView dy, std::uint32_t weight, std::uint32_t bias,
                       WeightSource& weights, GradSink& grads, MutView dx);
  void norm(ConstView x, ConstView weight, ConstView bias, MutView y, float* moments);
  void norm_backward(ConstView x, MutView dy, float* moments, std::uint32_t weight,
                     std::uint32_t bias, WeightSource& weights, GradSink& grads);

  void forward_block(int layer, WeightSource& weights);
  void backward_block(int layer, WeightSource& weights, GradSink& grads);
  void forward_head(WeightSource& weights);
  void backward_head(WeightSource& weights, GradSink& grads);
  void backward_embedding(GradSink& grads);

  GptConfig config_;
  GptIds ids_;
  ops::Context ctx_;
  std::size_t batch_ = 0, seq_ = 0;
  std::span<const std::int32_t> tokens_, targets_;
  bool training_ = false;
  float grad_scale_ = 1;
  double loss_ = 0;

  std::vector<Tensor> stream_;
  std::vector<BlockActivations> blocks_;
  Tensor ln_f_, moments_, logits_, token_stats_;
  Tensor dstream_;     ///< Gradient of the residual stream, [c].
  Tensor dinner_;      ///< Gradient inside a half-block, [4c] (or [vocab] at the head).
  Tensor dnorm_;       ///< Gradient of a norm's output, [c].
  Tensor token_grad_;  ///< fp32 [vocab, c]: the tied weight's sum between head and embedding.
};

void GptRun::check(const Batch& batch) const {
  const auto n = static_cast<std::size_t>(batch.batch) * static_cast<std::size_t>(batch.seq);
  if (batch.batch <= 0 || batch.seq <= 0 || batch.seq > config_.context) {
    throw UsageError("model", "1 <= seq <= " + std::to_string(config_.context),
                     std::to_string(batch.batch) + " x " + std::to_string(batch.seq));
  }
  if (batch.tokens.size() != n || batch.targets.size() != n) {
    throw UsageError(
        "model", std::to_string(n) + " tokens and targets",
        std::to_string(batch.tokens.size()) + " and " + std::to_string(batch.targets.size()));
  }
  for (std::size_t i = 0; i < n; ++i) {
    const bool ok = batch.tokens[i] >= 0 && batch.tokens[i] < config_.vocab;
    if (!ok || batch.targets[i] >= config_.vocab) {
      throw UsageError("model", "tokens below " + std::to_string(config_.vocab),
                       std::to_string(ok ? batch.targets[i] : batch.tokens[i]));
    }
  }
}

void GptRun::size_buffers() {
  const Dtype dtype = config_.dtype;
  const std::size_t c = width(), n = rows();
  const auto layers = static_cast<std::size_t>(training_ ? config_.layers : 1);
  if (stream_.size() < 2 * layers + 1) stream_.resize(2 * layers + 1);
  if (blocks_.size() < layers) blocks_.resize(layers);
  const std::size_t streams = training_ ? 2 * layers + 1 : 2;
  for (std::size_t i = 0; i < streams; ++i) size(stream_[i], dtype, n * c);
  for (std::size_t i = 0; i < layers; ++i) {
    BlockActivations& b = blocks_[i];
    size(b.ln_1, dtype, n * c);
    size(b.ln_2, dtype, n * c);
    size(b.qkv, dtype, n * 3 * c);
    size(b.attention, dtype, n * c);
    size(b.fc, dtype, n * 4 * c);
    size(b.gelu, dtype, n * 4 * c);
    size(b.moments, Dtype::kF32, n * 4);
    size(b.softmax, Dtype::kF32, attention_shape().stats());
  }
  size(ln_f_, dtype, n * c);
  size(moments_, Dtype::kF32, n * 2);
  size(logits_, Dtype::kF32, n * vocab());
  size(token_stats_, Dtype::kF32, n * 2);
  if (!training_) return;
  size(dstream_, dtype, n * c);
  size(dnorm_, dtype, n * c);
  size(dinner_, dtype, n * std::max(4 * c, dtype == Dtype::kF32 ? 0 : vocab()));
}

void GptRun::begin(const Batch& batch, bool training, float grad_scale) {
  check(batch);
  batch_ = static_cast<std::size_t>(batch.batch);
  seq_ = static_cast<std::size_t>(batch.seq);
  tokens_ = batch.tokens;
  targets_ = batch.targets;
  training_ = training;
  grad_scale_ = grad_scale;
  loss_ = 0;
  size_buffers();
}

void GptRun::end() {
  stream_.clear();
  blocks_.clear();
  for (Tensor* t : {&ln_f_, &moments_, &logits_, &token_stats_, &dstream_, &dinner_, &dnorm_,
                    &token_grad_}) {
    t->reset();
  }
  ctx_.release();
}

void GptRun::linear(ConstView x, ConstView weight, ConstView bias, MutView y) {
  const auto n = static_cast<std::int64_t>(rows());
  const auto in = static_cast<std::int64_t>(x.n / rows());
  const auto out = static_cast<std::int64_t>(y.n / rows());
  ops::matmul(ctx_, {.a = ops::matrix(x, n, in),
                     .b = ops::matrix(weight, in, out),
                     .c = ops::mut_matrix(y, n, out),
                     .bias = bias});
}

void GptRun::linear_backward(ConstView x, MutView dy, std::uint32_t weight, std::uint32_t bias,
                             WeightSource& weights, GradSink& grads, MutView dx) {
  const auto n = static_cast<std::int64_t>(rows());
  const auto in = static_cast<std::int64_t>(x.n / rows());
  const auto out = static_cast<std::int64_t>(dy.n / rows());
  const ops::Matrix dy_matrix = ops::matrix(dy, n, out);
  ops::matmul(ctx_, {.a = ops::transpose(ops::matrix(x, n, in)),
                     .b = dy_matrix,
                     .c = ops::mut_matrix(grads.grad(weight), in, out)});
  grads.done(weight);
  ops::column_sums(ctx_, dy, rows(), static_cast<std::size_t>(out), grads.grad(bias));
  grads.done(bias);
  ops::matmul(ctx_, {.a = dy_matrix,
                     .b = ops::transpose(ops::matrix(weights.weight(weight), in, out)),
                     .c = ops::mut_matrix(dx, n, in)});
}

void GptRun::norm(ConstView x, ConstView weight, ConstView bias, MutView y, float* moments) {
  ops::layer_norm_forward({.x = x,
                           .weight = weight,
                           .bias = bias,
                           .y = y,
                           .mean = moments,
                           .rstd = moments + rows(),
                           .rows = rows(),
                           .cols = width(),
                           .eps = static_cast<float>(config_.layer_norm_eps)});
}

void GptRun::norm_backward(ConstView x, MutView dy, float* moments, std::uint32_t weight,
                           std::uint32_t bias, WeightSource& weights, GradSink& grads) {
  ops::layer_norm_backward(ctx_, {.x = x,
                                  .weight = weights.weight(weight),
                                  .dy = dy,
                                  .mean = moments,
                                  .rstd = moments + rows(),
                                  .dx = part(dstream_, width()),
                                  .dweight = grads.grad(weight),
                                  .dbias = grads.grad(bias),
                                  .rows = rows(),
                                  .cols = width()});
  grads.done(weight);
  grads.done(bias);
}

void GptRun::forward(int unit, WeightSource& weights) {
  if (unit == 0) {
    ops::embedding_forward(embedding_shape(), tokens_, weights.weight(ids_.wte),
                           weights.weight(ids_.wpe), stream(0));
  } else if (unit == last()) {
    forward_head(weights);
  } else {
    forward_block(unit - 1, weights);
  }
}

void GptRun::forward_block(int layer, WeightSource& weights) {
  const GptBlockIds ids = ids_.block(layer);
  const std::size_t c = width();
  BlockActivations& b = block(layer);
  const auto w = [&](std::uint32_t t) { return weights.weight(t); };
  const MutView x = stream(2 * layer), middle = stream(2 * layer + 1),
                y = stream(2 * layer + 2);
  float* moments = b.moments.f32();

  norm(x, w(ids.ln_1_weight), w(ids.ln_1_bias), part(b.ln_1, c), moments);
  linear(part(b.ln_1, c), w(ids.attn_weight), w(ids.attn_bias), part(b.qkv, 3 * c));
  ops::attention_forward(ctx_, attention_shape(), part(b.qkv, 3 * c), part(b.attention, c),
                         b.softmax.f32());
  linear(part(b.attention, c), w(ids.attn_proj_weight), w(ids.attn_proj_bias), middle);
  ops::add(middle, x);

  norm(middle, w(ids.ln_2_weight), w(ids.ln_2_bias), part(b.ln_2, c), moments + 2 * rows());
  linear(part(b.ln_2, c), w(ids.fc_weight), w(ids.fc_bias), part(b.fc, 4 * c));
  ops::gelu_forward(part(b.fc, 4 * c), part(b.gelu, 4 * c));
  linear(part(b.gelu, 4 * c), w(ids.mlp_proj_weight), w(ids.mlp_proj_bias), y);
  ops::add(y, middle);
}

void GptRun::forward_head(WeightSource& weights) {
  const auto n = static_cast<std::int64_t>(rows());
  norm(stream(2 * config_.layers), weights.weight(ids_.ln_f_weight),
       weights.weight(ids_.ln_f_bias), part(ln_f_, width()), moments_.f32());
  const ops::Matrix head = ops::matrix(weights.weight(ids_.head), config_.vocab, config_.width);
  ops::matmul(ctx_, {.a = ops::matrix(part(ln_f_, width()), n, config_.width),
                     .b = ops::transpose(head),
                     .c = ops::mut_matrix(part(logits_, vocab()), n, config_.vocab)});
  loss_ = ops::cross_entropy_forward(cross_entropy(), token_stats_.f32());
}

void GptRun::backward(int unit, WeightSource& weights, GradSink& grads) {
  if (unit == 0) {
    backward_embedding(grads);
  } else if (unit == last()) {
    backward_head(weights, grads);
  } else {
    backward_block(unit - 1, weights, grads);
  }
}

void GptRun::backward_head(WeightSource& weights, GradSink& grads) {
  const auto n = static_cast<std::int64_t>(rows());
  const bool in_place = config_.dtype == Dtype::kF32;
  const MutView dlogits = part(in_place ? logits_ : dinner_, vocab());
  ops::cross_entropy_backward(cross_entropy(), token_stats_.f32(), grad_scale_, dlogits);

  const ops::Matrix dlogits_matrix = ops::matrix(dlogits, n, config_.vocab);
  if (config_.tied) {
    token_grad_ = Tensor(ctx_.memory(), MemoryKind::kWorkspace, Dtype::kF32, vocab() * width());
  }
  const MutView dhead = config_.tied ? token_grad_.view() : grads.grad(ids_.head);
  ops::matmul(ctx_, {.a = ops::transpose(dlogits_matrix),
                     .b = ops::matrix(part(ln_f_, width()), n, config_.width),
                     .c = ops::mut_matrix(dhead, config_.vocab, config_.width)});
  if (!config_.tied) grads.done(ids_.head);
  ops::matmul(ctx_, {.a = dlogits_matrix,
                     .b = ops::matrix(weights.weight(ids_.head), config_.vocab, config_.width),
                     .c = ops::mut_matrix(part(dnorm_, width()), n, config_.width)});

  for (std::byte& b : part(dstream_, width()).as_bytes()) b = std::byte{0};
  norm_backward(stream(2 * config_.layers), part(dnorm_, width()), moments_.f32(),
                ids_.ln_f_weight, ids_.ln_f_bias, weights, grads);
}

void GptRun::backward_block(int layer, WeightSource& weights, GradSink& grads) {
  const GptBlockIds ids = ids_.block(layer);
  const std::size_t c = width();
  BlockActivations& b = block(layer);
  float* moments = b.moments.f32();
  const MutView d = part(dstream_, c), dnorm = part(dnorm_, c);

  const MutView dfc = part(dinner_, 4 * c);
  linear_backward(part(b.gelu, 4 * c), d, ids.mlp_proj_weight, ids.mlp_proj_bias, weights,
                  grads, dfc);
  ops::gelu_backward(part(b.fc, 4 * c), dfc);
  linear_backward(part(b.ln_2, c), dfc, ids.fc_weight, ids.fc_bias, weights, grads, dnorm);
  norm_backward(stream(2 * layer + 1), dnorm, moments + 2 * rows(), ids.ln_2_weight,
                ids.ln_2_bias, weights, grads);

  const MutView dqkv = part(dinner_, 3 * c);
  linear_backward(part(b.attention, c), d, ids.attn_proj_weight, ids.attn_proj_bias, weights,
                  grads, dnorm);
  ops::attention_backward(ctx_, attention_shape(), part(b.qkv, 3 * c), dnorm, b.softmax.f32(),
                          dqkv);
  linear_backward(part(b.ln_1, c), dqkv, ids.attn_weight, ids.attn_bias, weights, grads, dnorm);
  norm_backward(stream(2 * layer), dnorm, moments, ids.ln_1_weight, ids.ln_1_bias, weights,
                grads);
}

void GptRun::backward_embedding(GradSink& grads) {
  const MutView dtoken = grads.grad(ids_.wte);
  if (!config_.tied) {
    token_grad_ = Tensor(ctx_.memory(), MemoryKind::kWorkspace, Dtype::kF32, vocab() * width());
    token_grad_.zero();
  }
  const MutView dposition = grads.grad(ids_.wpe);
  ops::embedding_backward(ctx_, embedding_shape(), tokens_, part(dstream_, width()),
                          {token_grad_.f32(), token_grad_.size()}, dposition);
  convert(token_grad_.view(), dtoken);
  token_grad_.reset();
  grads.done(ids_.wte);
  grads.done(ids_.wpe);
}

}  // namespace

std::unique_ptr<ModelRun> make_gpt_run(const GptConfig& config, quant::MemoryTracker* memory) {
  return std::make_unique<GptRun>(config, memory);
}

}  // namespace zeropp::zero
