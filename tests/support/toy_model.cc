#include "tests/support/toy_model.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "quant/convert.h"

namespace zeropp::test {
namespace {

using quant::ConstView;
using zero::Batch;
using zero::GradSink;
using zero::ModelRun;
using zero::WeightSource;

std::vector<float> to_floats(ConstView x) {
  std::vector<float> out(x.n);
  quant::convert(x, quant::mut_view(out));
  return out;
}

/// Units, tensors and which unit ends which gradient: the first unit that has the tensor.
class ToyModel : public zero::Model {
 public:
  ToyModel(std::vector<zero::TensorSpec> tensors, std::vector<std::vector<std::uint32_t>> units,
           quant::Dtype dtype)
      : tensors_(std::move(tensors)),
        units_(std::move(units)),
        grads_(units_.size()),
        dtype_(dtype) {
    std::vector<bool> seen(tensors_.size(), false);
    for (std::size_t u = 0; u < units_.size(); ++u) {
      for (const std::uint32_t t : units_[u]) {
        if (!seen[t]) grads_[u].push_back(t);
        seen[t] = true;
      }
    }
  }
  const std::vector<zero::TensorSpec>& tensors() const override { return tensors_; }
  int units() const override { return static_cast<int>(units_.size()); }
  const std::vector<std::uint32_t>& unit_tensors(int unit) const override {
    return units_.at(static_cast<std::size_t>(unit));
  }
  const std::vector<std::uint32_t>& unit_grads(int unit) const override {
    return grads_.at(static_cast<std::size_t>(unit));
  }
  quant::Dtype dtype() const override { return dtype_; }

 private:
  std::vector<zero::TensorSpec> tensors_;
  std::vector<std::vector<std::uint32_t>> units_, grads_;
  quant::Dtype dtype_;
};

class ConstantModel final : public ToyModel {
 public:
  explicit ConstantModel(ConstantModelConfig c)
      : ToyModel(c.tensors, units_of(c), c.dtype), config_(std::move(c)) {}
  std::unique_ptr<ModelRun> start(quant::MemoryTracker* memory) const override;
  const ConstantModelConfig& config() const { return config_; }

 private:
  static std::vector<std::vector<std::uint32_t>> units_of(const ConstantModelConfig& c) {
    if (!c.units.empty()) return c.units;
    std::vector<std::vector<std::uint32_t>> units;
    for (std::uint32_t t = 0; t < c.tensors.size(); ++t) units.push_back({t});
    return units;
  }
  ConstantModelConfig config_;
};

class ConstantRun final : public ModelRun {
 public:
  explicit ConstantRun(const ConstantModel& model) : model_(model) {}

  void begin(const Batch&, bool training, float grad_scale) override {
    if (training) ++pass_;
    grad_scale_ = grad_scale;
    loss_ = 0;
    seen_.clear();
  }
  void forward(int unit, WeightSource& weights) override {
    for (const std::uint32_t t : model_.unit_tensors(unit)) {
      seen_[t] = read(weights, t);
      loss_ = std::accumulate(seen_[t].begin(), seen_[t].end(), loss_);
    }
  }
  double loss() const override { return loss_; }
  void backward(int unit, WeightSource& weights, GradSink& grads) override {
    const auto& ended = model_.unit_grads(unit);
    for (const std::uint32_t t : model_.unit_tensors(unit)) {
      const bool gathered = unit > 0 || !tied(t);  // A tied one is not gathered for unit 0.
      if (gathered && read(weights, t) != seen_[t] && model_.config().check_backward) {
        throw std::logic_error("backward sees other weights: " + model_.tensors()[t].name);
      }
    }
    for (const std::uint32_t t : ended) {
      std::vector<float> x(model_.tensors()[t].numel);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = model_.config().gradient({pass_, t, i}) * grad_scale_;
      }
      quant::convert(quant::view(x), grads.grad(t));
      grads.done(t);
    }
  }
  void end() override { seen_.clear(); }

 private:
  bool tied(std::uint32_t t) const {
    const auto& last = model_.unit_tensors(model_.units() - 1);
    return model_.units() > 1 && std::find(last.begin(), last.end(), t) != last.end();
  }
  std::vector<float> read(WeightSource& weights, std::uint32_t t) const {
    const ConstView w = weights.weight(t);
    if (w.n != model_.tensors()[t].numel || w.dtype != model_.dtype()) {
      throw std::logic_error("not a whole tensor: " + model_.tensors()[t].name);
    }
    return to_floats(w);
  }

  const ConstantModel& model_;
  int pass_ = -1;
  float grad_scale_ = 1;
  double loss_ = 0;
  std::map<std::uint32_t, std::vector<float>> seen_;
};

std::unique_ptr<ModelRun> ConstantModel::start(quant::MemoryTracker*) const {
  return std::make_unique<ConstantRun>(*this);
}

/// Canonical ids of the tied MLP.
struct Ids {
  explicit Ids(const TiedMlpConfig& c)
      : layers(static_cast<std::uint32_t>(c.layers)), tied(c.tied) {}
  std::uint32_t weight(std::uint32_t l) const { return 1 + 4 * l; }
  std::uint32_t bias(std::uint32_t l) const { return 2 + 4 * l; }
  std::uint32_t branch(std::uint32_t l) const { return 3 + 4 * l; }
  std::uint32_t scale(std::uint32_t l) const { return 4 + 4 * l; }
  std::uint32_t hole() const { return 1 + 4 * layers; }  ///< And the next one.
  std::uint32_t offset() const { return 3 + 4 * layers; }
  std::uint32_t head() const { return tied ? 0 : 4 + 4 * layers; }
  std::uint32_t layers;
  bool tied;
};

std::vector<zero::TensorSpec> mlp_tensors(const TiedMlpConfig& c) {
  const auto v = static_cast<std::size_t>(c.vocab), d = static_cast<std::size_t>(c.width);
  using zero::InitKind;
  std::vector<zero::TensorSpec> t{toy_tensor("wte.weight", {v, d})};
  for (int l = 0; l < c.layers; ++l) {
    const std::string h = "h." + std::to_string(l) + ".";
    t.push_back(toy_tensor(h + "fc.weight", {d, d}));
    t.push_back(toy_tensor(h + "fc.bias", {d}, InitKind::kZeros));
    t.push_back(toy_tensor(h + "branch.weight", {d}));
    t.push_back(toy_tensor(h + "branch.scale", {1}, InitKind::kOnes));
  }
  t.push_back(toy_tensor("void", {0}));
  t.push_back(toy_tensor("hole", {8, 0, 24}));
  t.push_back(toy_tensor("offset", {d}, InitKind::kZeros));
  if (!c.tied) t.push_back(toy_tensor("lm_head.weight", {v, d}));
  return t;
}

std::vector<std::vector<std::uint32_t>> mlp_units(const TiedMlpConfig& c) {
  const Ids id(c);
  std::vector<std::vector<std::uint32_t>> units{{0}};
  for (std::uint32_t l = 0; l < id.layers; ++l) {
    units.push_back({id.weight(l), id.bias(l), id.branch(l), id.scale(l)});
  }
  units[1].push_back(id.hole());
  units[1].push_back(id.hole() + 1);
  units.push_back({id.offset(), id.head()});
  return units;
}

class TiedMlp final : public ToyModel {
 public:
  explicit TiedMlp(TiedMlpConfig c)
      : ToyModel(mlp_tensors(c), mlp_units(c), c.dtype), config_(std::move(c)) {}
  std::unique_ptr<ModelRun> start(quant::MemoryTracker* memory) const override;
  const TiedMlpConfig& config() const { return config_; }

 private:
  TiedMlpConfig config_;
};

class MlpRun final : public ModelRun {
 public:
  MlpRun(const TiedMlp& model, quant::MemoryTracker* memory)
      : model_(model),
        id_(model.config()),
        width_(static_cast<std::size_t>(model.config().width)),
        memory_(memory) {}

  void begin(const Batch& batch, bool training, float grad_scale) override;
  void forward(int unit, WeightSource& weights) override;
  double loss() const override { return loss_; }
  void backward(int unit, WeightSource& weights, GradSink& grads) override;
  void end() override { activations_.reset(); }

 private:
  void forward_head(const std::vector<float>& offset, const std::vector<float>& head);
  void backward_head(const std::vector<float>& head, GradSink& grads);
  void backward_layer(std::uint32_t layer, WeightSource& weights, GradSink& grads);
  void give(GradSink& grads, std::uint32_t t, const std::vector<float>& x) const {
    quant::convert(quant::view(x), grads.grad(t));
    grads.done(t);
  }
  /// Input of a layer (layer = layers: of the head) for one token.
  float* x(std::size_t layer, std::size_t i) {
    return activations_.f32() + (layer * tokens_.size() + i) * width_;
  }
  std::size_t row(std::int32_t token) const {
    return static_cast<std::size_t>(token % model_.config().vocab) * width_;
  }

  const TiedMlp& model_;
  const Ids id_;
  const std::size_t width_;
  quant::MemoryTracker* memory_;
  quant::Tensor activations_;
  std::vector<std::int32_t> tokens_, targets_;
  std::vector<float> residual_;  ///< Logit - 1 of every token; 0 where masked.
  std::vector<float> dx_;
  std::vector<float> embedding_grad_;  ///< The head's part waits here for the embedding's.
  std::vector<float> offset_;
  int pass_ = -1;
  bool active_ = true;
  float grad_scale_ = 1, unmasked_ = 0;
  double loss_ = 0;
};

void MlpRun::begin(const Batch& batch, bool training, float grad_scale) {
  if (training) ++pass_;
  const auto& branch = model_.config().branch;
  active_ = !branch || !training || branch(pass_);
  grad_scale_ = grad_scale;
  tokens_.assign(batch.tokens.begin(), batch.tokens.end());
  targets_.assign(batch.targets.begin(), batch.targets.end());
  unmasked_ = static_cast<float>(
      std::count_if(targets_.begin(), targets_.end(), [](auto t) { return t >= 0; }));
  const std::size_t elements = (id_.layers + 1) * tokens_.size() * width_;
  if (!activations_ || activations_.size() != elements) {
    activations_ = {memory_, quant::MemoryKind::kActivation, quant::Dtype::kF32, elements};
  }
}

void MlpRun::forward(int unit, WeightSource& weights) {
  if (unit == 0) {
    const auto e = to_floats(weights.weight(0));
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      std::copy_n(e.data() + row(tokens_[i]), width_, x(0, i));
    }
    return;
  }
  const auto l = static_cast<std::uint32_t>(unit - 1);
  if (l == id_.layers) {
    forward_head(to_floats(weights.weight(id_.offset())),
                 to_floats(weights.weight(id_.head())));
    return;
  }
  const auto w = to_floats(weights.weight(id_.weight(l)));
  const auto b = to_floats(weights.weight(id_.bias(l)));
  const auto c = to_floats(weights.weight(id_.branch(l)));
  const float s = to_floats(weights.weight(id_.scale(l)))[0];
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const float* in = x(l, i);
    float* out = x(l + 1, i);
    for (std::size_t j = 0; j < width_; ++j) {
      float sum = b[j];
      for (std::size_t k = 0; k < width_; ++k) sum += w[j * width_ + k] * in[k];
      if (active_) sum += s * (c[j] * in[j]);
      out[j] = sum;
    }
  }
}

void MlpRun::forward_head(const std::vector<float>& offset, const std::vector<float>& head) {
  offset_ = offset;
  residual_.assign(tokens_.size(), 0.0F);
  loss_ = 0;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (targets_[i] < 0) continue;
    const float* in = x(id_.layers, i);
    float logit = 0;
    for (std::size_t j = 0; j < width_; ++j) {
      logit += head[row(targets_[i]) + j] * (in[j] + offset[j]);
    }
    residual_[i] = logit - 1.0F;
    loss_ += 0.5 * static_cast<double>(residual_[i]) * residual_[i];
  }
  if (unmasked_ > 0) loss_ /= unmasked_;
}

void MlpRun::backward(int unit, WeightSource& weights, GradSink& grads) {
  if (unit == 0) {
    std::vector<float> embedding(model_.tensors()[0].numel, 0.0F);
    auto& sum = id_.tied ? embedding_grad_ : embedding;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      for (std::size_t j = 0; j < width_; ++j) sum[row(tokens_[i]) + j] += dx_[i * width_ + j];
    }
    give(grads, 0, sum);
    return;
  }
  const auto l = static_cast<std::uint32_t>(unit - 1);
  if (l == id_.layers) {
    backward_head(to_floats(weights.weight(id_.head())), grads);
  } else {
    backward_layer(l, weights, grads);
  }
}

void MlpRun::backward_head(const std::vector<float>& head, GradSink& grads) {
  std::vector<float> d_head(head.size(), 0.0F), d_offset(width_, 0.0F);
  dx_.assign(tokens_.size() * width_, 0.0F);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (targets_[i] < 0) continue;
    const float d = residual_[i] * (grad_scale_ / unmasked_);
    for (std::size_t j = 0; j < width_; ++j) {
      d_head[row(targets_[i]) + j] += d * (x(id_.layers, i)[j] + offset_[j]);
      dx_[i * width_ + j] = d * head[row(targets_[i]) + j];
      d_offset[j] += dx_[i * width_ + j];
    }
  }
  give(grads, id_.offset(), d_offset);
  if (id_.tied) {
    embedding_grad_ = std::move(d_head);
  } else {
    give(grads, id_.head(), d_head);
  }
}

void MlpRun::backward_layer(std::uint32_t l, WeightSource& weights, GradSink& grads) {
  const auto w = to_floats(weights.weight(id_.weight(l)));
  const auto c = to_floats(weights.weight(id_.branch(l)));
  const float s = to_floats(weights.weight(id_.scale(l)))[0];
  std::vector<float> dw(w.size(), 0.0F), db(width_, 0.0F), dc(width_, 0.0F), ds(1, 0.0F);
  std::vector<float> before(width_);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const float* in = x(l, i);
    float* d = dx_.data() + i * width_;
    std::fill(before.begin(), before.end(), 0.0F);
    for (std::size_t j = 0; j < width_; ++j) {
      db[j] += d[j];
      for (std::size_t k = 0; k < width_; ++k) {
        dw[j * width_ + k] += d[j] * in[k];
        before[k] += w[j * width_ + k] * d[j];
      }
      if (!active_) continue;
      dc[j] += s * (d[j] * in[j]);
      ds[0] += d[j] * (c[j] * in[j]);
      before[j] += s * (c[j] * d[j]);
    }
    std::copy(before.begin(), before.end(), d);
  }
  give(grads, id_.weight(l), dw);
  give(grads, id_.bias(l), db);
  give(grads, id_.branch(l), dc);
  give(grads, id_.scale(l), ds);
  if (l > 0) return;
  give(grads, id_.hole(), {});
  give(grads, id_.hole() + 1, {});
}

std::unique_ptr<ModelRun> TiedMlp::start(quant::MemoryTracker* memory) const {
  return std::make_unique<MlpRun>(*this, memory);
}

}  // namespace

zero::TensorSpec toy_tensor(std::string name, std::vector<std::size_t> shape,
                            zero::InitKind init, double std) {
  const std::size_t numel =
      std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
  return {.name = std::move(name),
          .shape = std::move(shape),
          .numel = numel,
          .init = init,
          .init_std = std};
}

std::unique_ptr<zero::Model> constant_model(ConstantModelConfig config) {
  if (!config.gradient) config.gradient = [](const GradPoint&) { return 0.0F; };
  return std::make_unique<ConstantModel>(std::move(config));
}

std::unique_ptr<zero::Model> tied_mlp(TiedMlpConfig config) {
  if (config.layers < 1) throw std::invalid_argument("tied_mlp: at least one layer");
  return std::make_unique<TiedMlp>(std::move(config));
}

}  // namespace zeropp::test
