#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "quant/convert.h"
#include "quant/memory.h"
#include "zero/model.h"

namespace zeropp::zero::testing {

/// murmur3's finalizer on element + stream * golden ratio; `mix` of
/// tests/golden/make_golden.py.
inline std::uint32_t mix(std::uint32_t stream, std::uint32_t element) {
  std::uint32_t x = element + stream * 0x9E3779B9U;
  x = (x ^ (x >> 16U)) * 0x85EBCA6BU;
  x = (x ^ (x >> 13U)) * 0xC2B2AE35U;
  return x ^ (x >> 16U);
}
/// 24 bits in [-0.5, 0.5), exact in fp32.
inline double centred(std::uint32_t stream, std::uint32_t element) {
  return static_cast<double>(mix(stream, element) >> 8U) * 0x1p-24 - 0.5;
}
inline std::vector<float> noise(std::uint32_t stream, std::size_t n, double scale = 1) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(scale * centred(stream, static_cast<std::uint32_t>(i)));
  }
  return x;
}

inline std::vector<float> to_f32(quant::ConstView v) {
  std::vector<float> out(v.n);
  convert(v, quant::mut_view(out));
  return out;
}

/// A model with all its weights in memory; checks the contracts of WeightSource and GradSink.
class Harness : public WeightSource, public GradSink {
 public:
  explicit Harness(const GptConfig& config, quant::MemoryTracker* memory = nullptr)
      : model(make_gpt(config)), run(model->start(memory)), dtype(config.dtype) {
    const std::vector<TensorSpec>& tensors = model->tensors();
    for (std::uint32_t t = 0; t < tensors.size(); ++t) {
      masters.push_back(initial(t));
      grads.emplace_back(nullptr, quant::MemoryKind::kGrads, dtype, tensors[t].numel);
    }
    round_weights();
  }

  /// The formula of make_golden.py.
  std::vector<float> initial(std::uint32_t t) const {
    const TensorSpec& spec = model->tensors()[t];
    const bool bias = spec.name.ends_with(".bias");
    const bool norm = !bias && spec.shape.size() == 1;
    std::vector<float> w = noise(t, spec.numel, bias ? 0.125 : 0.25);
    if (!norm) return w;
    for (std::uint32_t i = 0; i < spec.numel; ++i) {
      w[i] = static_cast<float>(1 + 0.25 * centred(t, i));
    }
    return w;
  }
  void round_weights() {
    params.clear();
    for (const std::vector<float>& master : masters) {
      params.emplace_back(nullptr, quant::MemoryKind::kParams, dtype, master.size());
      convert(quant::view(master), params.back().view());
    }
  }

  double forward(const Batch& batch, bool training = true, float grad_scale = 1) {
    run->begin(batch, training, grad_scale);
    for (unit_ = 0; unit_ < model->units(); ++unit_) run->forward(unit_, *this);
    return run->loss();
  }
  void backward() {
    in_backward_ = true;
    done_.clear();
    for (unit_ = model->units() - 1; unit_ >= 0; --unit_) {
      done_in_unit_.clear();
      run->backward(unit_, *this, *this);
      if (done_in_unit_ != model->unit_grads(unit_)) fail("done() out of order", 0);
    }
    in_backward_ = false;
    if (done_.size() != grads.size()) fail("gradients missing", 0);
  }

  quant::ConstView weight(std::uint32_t t) override {
    const auto& allowed = model->unit_tensors(unit_);
    if (std::find(allowed.begin(), allowed.end(), t) == allowed.end()) fail("weight", t);
    if (in_backward_ && unit_ == 0 && t == 0) fail("token embedding in its backward", t);
    return params[t].view();
  }
  quant::MutView grad(std::uint32_t t) override {
    for (std::byte& b : grads[t].view().as_bytes()) b = std::byte{0xFF};  // NaN
    return grads[t].view();
  }
  void done(std::uint32_t t) override {
    if (!done_.insert(t).second) fail("done() twice", t);
    done_in_unit_.push_back(t);
  }

  std::unique_ptr<Model> model;
  std::unique_ptr<ModelRun> run;
  quant::Dtype dtype;
  std::vector<std::vector<float>> masters;
  std::vector<quant::Tensor> params, grads;

 private:
  [[noreturn]] void fail(const std::string& what, std::uint32_t t) const {
    throw std::logic_error("contract of the model: " + what + ", unit " +
                           std::to_string(unit_) + ", tensor " + std::to_string(t));
  }
  int unit_ = 0;
  bool in_backward_ = false;
  std::set<std::uint32_t> done_;
  std::vector<std::uint32_t> done_in_unit_;
};

/// Tokens and targets that live as long as the batch is used.
struct OwnedBatch {
  OwnedBatch(int batch_size, int sequence)
      : batch(batch_size),
        seq(sequence),
        tokens(static_cast<std::size_t>(batch_size * sequence)),
        targets(tokens.size()) {}
  Batch view() const { return {tokens, targets, batch, seq}; }
  int batch, seq;
  std::vector<std::int32_t> tokens, targets;
};

/// Uniform tokens; every `mask_every`-th target is masked (0 = none).
inline OwnedBatch random_batch(std::uint32_t stream, int batch, int seq, int vocab,
                               std::uint32_t mask_every = 0) {
  OwnedBatch b(batch, seq);
  for (std::uint32_t i = 0; i < b.tokens.size(); ++i) {
    const auto v = static_cast<std::uint32_t>(vocab);
    b.tokens[i] = static_cast<std::int32_t>((mix(stream, 2 * i) >> 8U) % v);
    b.targets[i] = static_cast<std::int32_t>((mix(stream, 2 * i + 1) >> 8U) % v);
    if (mask_every != 0 && i % mask_every == 0) b.targets[i] = -1;
  }
  return b;
}

}  // namespace zeropp::zero::testing
