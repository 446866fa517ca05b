#include "zero/gpt.h"

#include <cmath>
#include <string>

#include "quant/error.h"

namespace zeropp::zero {
namespace {

using Shape = std::vector<std::size_t>;

class TensorList {
 public:
  explicit TensorList(double init_std) : init_std_(init_std) {}
  void matrix(const std::string& name, Shape shape, double scale = 1) {
    add(name, std::move(shape), InitKind::kNormal, init_std_ * scale);
  }
  void vector(const std::string& name, std::size_t n, InitKind init) {
    add(name, {n}, init, 0);
  }
  void norm(const std::string& name, std::size_t n) {
    vector(name + ".weight", n, InitKind::kOnes);
    vector(name + ".bias", n, InitKind::kZeros);
  }
  std::vector<TensorSpec> take() { return std::move(tensors_); }

 private:
  void add(const std::string& name, Shape shape, InitKind init, double std) {
    TensorSpec t{
        .name = name, .shape = std::move(shape), .numel = 1, .init = init, .init_std = std};
    for (const std::size_t d : t.shape) t.numel *= d;
    tensors_.push_back(std::move(t));
  }
  double init_std_;
  std::vector<TensorSpec> tensors_;
};

std::vector<TensorSpec> gpt_tensors(const GptConfig& c) {
  const auto width = static_cast<std::size_t>(c.width);
  const auto vocab = static_cast<std::size_t>(c.vocab);
  const double residual = 1 / std::sqrt(2.0 * c.layers);
  TensorList list(c.init_std);
  list.matrix("wte.weight", {vocab, width});
  list.matrix("wpe.weight", {static_cast<std::size_t>(c.context), width});
  for (int i = 0; i < c.layers; ++i) {
    const std::string h = "h." + std::to_string(i) + ".";
    const auto linear = [&](const std::string& name, std::size_t in, std::size_t out,
                            double scale = 1) {
      list.matrix(h + name + ".weight", {in, out}, scale);
      list.vector(h + name + ".bias", out, InitKind::kZeros);
    };
    list.norm(h + "ln_1", width);
    linear("attn.c_attn", width, 3 * width);
    linear("attn.c_proj", width, width, residual);
    list.norm(h + "ln_2", width);
    linear("mlp.c_fc", width, 4 * width);
    linear("mlp.c_proj", 4 * width, width, residual);
  }
  list.norm("ln_f", width);
  if (!c.tied) list.matrix("lm_head.weight", {vocab, width});
  return list.take();
}

class Gpt final : public Model {
 public:
  explicit Gpt(const GptConfig& config)
      : config_(config), ids_(config), tensors_(gpt_tensors(config)) {
    const auto last = static_cast<std::size_t>(config.layers) + 1;
    unit_tensors_.resize(last + 1);
    unit_grads_.resize(last + 1);
    unit_tensors_[0] = unit_grads_[0] = {ids_.wte, ids_.wpe};
    for (int i = 0; i < config.layers; ++i) add_block(i);
    unit_tensors_[last] = {ids_.ln_f_weight, ids_.ln_f_bias, ids_.head};
    unit_grads_[last] = {ids_.ln_f_weight, ids_.ln_f_bias};
    if (!config.tied) unit_grads_[last].insert(unit_grads_[last].begin(), ids_.head);
  }

  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  int units() const override { return config_.layers + 2; }
  const std::vector<std::uint32_t>& unit_tensors(int unit) const override {
    return unit_tensors_.at(static_cast<std::size_t>(unit));
  }
  const std::vector<std::uint32_t>& unit_grads(int unit) const override {
    return unit_grads_.at(static_cast<std::size_t>(unit));
  }
  quant::Dtype dtype() const override { return config_.dtype; }
  std::unique_ptr<ModelRun> start(quant::MemoryTracker* memory) const override {
    return make_gpt_run(config_, memory);
  }

 private:
  void add_block(int layer) {
    const GptBlockIds b = ids_.block(layer);
    const auto unit = static_cast<std::size_t>(layer) + 1;
    for (std::uint32_t t = 0; t < GptBlockIds::kCount; ++t) {
      unit_tensors_[unit].push_back(b.ln_1_weight + t);
    }
    unit_grads_[unit] = {b.mlp_proj_weight,  b.mlp_proj_bias,  b.fc_weight,
                         b.fc_bias,          b.ln_2_weight,    b.ln_2_bias,
                         b.attn_proj_weight, b.attn_proj_bias, b.attn_weight,
                         b.attn_bias,        b.ln_1_weight,    b.ln_1_bias};
  }

  GptConfig config_;
  GptIds ids_;
  std::vector<TensorSpec> tensors_;
  std::vector<std::vector<std::uint32_t>> unit_tensors_, unit_grads_;
};

void require(bool ok, const char* what, int found) {
  if (!ok) throw UsageError("model", what, std::to_string(found));
}

}  // namespace

std::size_t GptConfig::parameters() const {
  std::size_t n = 0;
  for (const TensorSpec& t : gpt_tensors(*this)) n += t.numel;
  return n;
}

std::unique_ptr<Model> make_gpt(const GptConfig& config) {
  require(config.layers > 0, "layers > 0", config.layers);
  require(config.width > 0, "width > 0", config.width);
  require(config.heads > 0, "heads > 0", config.heads);
  require(config.vocab > 0, "vocab > 0", config.vocab);
  require(config.context > 0, "context > 0", config.context);
  if (config.width % config.heads != 0) {
    throw UsageError("model", "width divisible by heads",
                     std::to_string(config.width) + " % " + std::to_string(config.heads));
  }
  return std::make_unique<Gpt>(config);
}

}  // namespace zeropp::zero
