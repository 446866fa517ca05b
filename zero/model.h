#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quant/dtype.h"
#include "quant/memory.h"

namespace zeropp::zero {

enum class InitKind : std::uint8_t { kNormal, kZeros, kOnes };

/// One parameter tensor. Its index in Model::tensors() is its canonical id everywhere.
struct TensorSpec {
  std::string name;  ///< GPT-2 / Hugging Face name, e.g. "h.0.attn.c_attn.weight".
  std::vector<std::size_t> shape;
  std::size_t numel = 0;
  InitKind init = InitKind::kNormal;
  double init_std = 0.02;
  bool trainable = true;
};

/// Tokens and next-token targets of one micro-batch, row-major [batch, seq].
/// A target < 0 is masked: no loss, no gradient.
struct Batch {
  std::span<const std::int32_t> tokens, targets;
  int batch = 0, seq = 0;
};

/// Where a unit's forward and backward find weights: the whole tensor in the parameter dtype.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual quant::ConstView weight(std::uint32_t tensor) = 0;
};

/// Where backward puts the local gradient of a tensor: `numel` elements in the gradient dtype,
/// uninitialised; the model writes all of it, once a micro-step, then calls done(tensor).
class GradSink {
 public:
  virtual ~GradSink() = default;
  virtual quant::MutView grad(std::uint32_t tensor) = 0;
  virtual void done(std::uint32_t tensor) = 0;
};

/// One rank's activations. Units run forward 0..units-1 and backward in reverse.
class ModelRun {
 public:
  virtual ~ModelRun() = default;
  /// `training` keeps what backward needs. grad_scale multiplies d(mean loss): loss scale /
  /// GAS.
  virtual void begin(const Batch& batch, bool training, float grad_scale) = 0;
  virtual void forward(int unit, WeightSource& weights) = 0;
  /// Mean negative log likelihood over unmasked targets, in nats, after the last unit's
  /// forward.
  virtual double loss() const = 0;
  virtual void backward(int unit, WeightSource& weights, GradSink& grads) = 0;
  /// Frees what begin() and the passes allocated (kept between micro-steps otherwise).
  virtual void end() = 0;
};

/// A model as the engine sees it: tensors, units of tensors that are gathered and released
/// together, and passes over units.
class Model {
 public:
  virtual ~Model() = default;
  virtual const std::vector<TensorSpec>& tensors() const = 0;
  virtual int units() const = 0;
  /// Tensors that a unit needs, in gather order. A tied tensor belongs to two units (first and
  /// last); it is gathered for the first unit's forward and for the last one's forward, where
  /// it stays live through that unit's backward, and is not gathered for the first one's
  /// backward.
  virtual const std::vector<std::uint32_t>& unit_tensors(int unit) const = 0;
  /// Tensors whose gradient is finished (GradSink::done) by this unit's backward, in that
  /// order.
  virtual const std::vector<std::uint32_t>& unit_grads(int unit) const = 0;
  virtual quant::Dtype dtype() const = 0;
  virtual std::unique_ptr<ModelRun> start(quant::MemoryTracker* memory) const = 0;
};

/// GPT-2: token and position embeddings, pre-LN blocks (affine norms, biases, causal attention,
/// tanh-GELU MLP of 4x width), final norm, head tied to the token embedding or not.
/// Matmul weights are stored in x out (Conv1D), as in Hugging Face's GPT-2; an untied head is
/// "lm_head.weight" [vocab, width].
struct GptConfig {
  int layers = 2;
  int width = 64;
  int heads = 2;
  int vocab = 256;
  int context = 64;  ///< Positions; longest sequence.
  bool tied = true;
  double layer_norm_eps = 1e-5;
  double init_std = 0.02;  ///< Residual projections get init_std / sqrt(2 * layers), as GPT-2.
  quant::Dtype dtype = quant::Dtype::kF32;

  std::size_t parameters() const;  ///< The tied head counts once.
};
std::unique_ptr<Model> make_gpt(const GptConfig& config);  ///< UsageError: width % heads, <= 0.

}  // namespace zeropp::zero
