#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "quant/device.h"
#include "quant/dtype.h"
#include "quant/memory.h"

/// Operations of the model, one folder a backend (zero/ops/cpu, later zero/ops/cuda) with the
/// same functions. All of them:
///  - compute in fp32 whatever the dtype of activations and weights, and round once on store;
///  - run on one thread, never yield, and give bits that do not depend on the thread;
///  - write every element of their outputs and read nothing uninitialised into them;
///  - keep temporary memory in the Context, so it is booked on the rank.
/// Matrices are row-major. `rows` is batch * seq unless said otherwise.
namespace zeropp::zero::ops {

/// Named scratch areas of a Context; an op uses several at a time, never one twice.
enum class Slot : std::uint8_t {
  kPrimitive,
  kLeft,
  kRight,
  kBias,
  kResult,
  kSums,  // matmul and column sums
  kScores,
  kScoreGrads,
  kProbabilities,
  kProbabilityGrads,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kKeyGrads,
  kValueGrads,
  kHeadResult,
};
inline constexpr int kSlots = 17;

/// What an op needs besides its operands: a stream and scratch memory of one rank
/// (MemoryKind::kWorkspace). Not thread-safe; may move between threads between calls.
class Context {
 public:
  explicit Context(quant::MemoryTracker* memory, quant::Stream stream = {})
      : memory_(memory), stream_(stream) {}
  /// Uninitialised, 64-byte aligned, valid until the slot is asked for again. Grows only.
  std::byte* scratch(Slot slot, std::size_t bytes);
  quant::MutView scratch(Slot slot, quant::Dtype dtype, std::size_t n) {
    return {scratch(slot, n * size_of(dtype)), dtype, n};
  }
  float* scratch_f32(Slot slot, std::size_t n) {
    return reinterpret_cast<float*>(scratch(slot, n * sizeof(float)));
  }
  quant::MemoryTracker* memory() const { return memory_; }
  quant::Stream stream() const { return stream_; }
  void release();  ///< Frees all scratch.

 private:
  quant::MemoryTracker* memory_;
  quant::Stream stream_;
  std::array<quant::Buffer, kSlots> slots_;
};

/// True if matmuls of this dtype run in it with fp32 accumulation; else operands are widened
/// into scratch and multiplied in fp32. Decided once by what the CPU and ONEDNN_MAX_CPU_ISA
/// allow.
bool native_matmul(quant::Dtype dtype);
/// For `program.cpu`, e.g. "avx512_core_bf16; matmul fp32 native, bf16 native, fp16 widened".
std::string describe_backend();

/// rows x cols; element (i, j) is at i * ld + j, or at j * ld + i if transposed.
struct Matrix {
  const void* data = nullptr;
  quant::Dtype dtype = quant::Dtype::kF32;
  std::int64_t rows = 0, cols = 0, ld = 0;
  bool transposed = false;
};
/// Contiguous rows x cols.
inline Matrix matrix(quant::ConstView v, std::int64_t rows, std::int64_t cols) {
  return {v.data, v.dtype, rows, cols, cols, false};
}
inline Matrix transpose(const Matrix& m) {
  return {m.data, m.dtype, m.cols, m.rows, m.ld, !m.transposed};
}
struct MutMatrix {
  void* data = nullptr;
  quant::Dtype dtype = quant::Dtype::kF32;
  std::int64_t rows = 0, cols = 0, ld = 0;
};
inline MutMatrix mut_matrix(quant::MutView v, std::int64_t rows, std::int64_t cols) {
  return {v.data, v.dtype, rows, cols, cols};
}

/// c = a b + bias, or c += a b with `accumulate` (c in fp32, no bias). a and b have one dtype;
/// c has any. Accumulates in fp32. UsageError when shapes or dtypes do not fit.
struct MatmulArgs {
  Matrix a, b;
  MutMatrix c;
  quant::ConstView bias{};  ///< c.cols elements; empty = none.
  bool accumulate = false;
};
void matmul(Context& ctx, const MatmulArgs& args);

/// out[j] = sum over rows of x[i, j], in row order.
void column_sums(Context& ctx, quant::ConstView x, std::size_t rows, std::size_t cols,
                 quant::MutView out);

/// acc = round(acc + x).
void add(quant::MutView acc, quant::ConstView x);

/// y = (x - mean) * rstd * weight + bias over each row; mean and rstd are kept per row.
struct LayerNormForward {
  quant::ConstView x, weight, bias;
  quant::MutView y;
  float* mean = nullptr;
  float* rstd = nullptr;
  std::size_t rows = 0, cols = 0;
  float eps = 1e-5F;
};
void layer_norm_forward(const LayerNormForward& args);

/// dx = round(dx + gradient of x): on entry dx holds the gradient of the residual branch.
struct LayerNormBackward {
  quant::ConstView x, weight, dy;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  quant::MutView dx, dweight, dbias;
  std::size_t rows = 0, cols = 0;
};
void layer_norm_backward(Context& ctx, const LayerNormBackward& args);

/// y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's GELU.
void gelu_forward(quant::ConstView x, quant::MutView y);
/// dy = gradient of x, in place.
void gelu_backward(quant::ConstView x, quant::MutView dy);

/// Causal attention. qkv is [batch * seq, 3 * heads * head_dim]: queries, keys, values.
struct AttentionShape {
  std::size_t batch = 0, seq = 0, heads = 0, head_dim = 0;
  std::size_t width() const { return heads * head_dim; }
  /// Floats that forward leaves for backward: maximum and 1/sum of each softmax row.
  std::size_t stats() const { return 2 * batch * heads * seq; }
};
/// out is [batch * seq, width]. Scores are never kept: backward computes them again.
void attention_forward(Context& ctx, const AttentionShape& shape, quant::ConstView qkv,
                       quant::MutView out, float* stats);
void attention_backward(Context& ctx, const AttentionShape& shape, quant::ConstView qkv,
                        quant::ConstView dout, const float* stats, quant::MutView dqkv);

/// x[b, t] = token[tokens[b, t]] + position[t]. Tokens must be in range.
struct EmbeddingShape {
  std::size_t batch = 0, seq = 0, width = 0, vocab = 0, context = 0;
};
void embedding_forward(const EmbeddingShape& shape, std::span<const std::int32_t> tokens,
                       quant::ConstView token, quant::ConstView position, quant::MutView x);
/// dtoken += rows of dx in sample order; dposition is written, zero beyond seq.
void embedding_backward(Context& ctx, const EmbeddingShape& shape,
                        std::span<const std::int32_t> tokens, quant::ConstView dx,
                        std::span<float> dtoken, quant::MutView dposition);

/// Rows with target < 0 count for nothing. `stats`: 2 * rows floats for backward.
struct CrossEntropy {
  const float* logits = nullptr;  ///< [rows, vocab]
  std::span<const std::int32_t> targets;
  std::size_t rows = 0, vocab = 0;
};
/// Mean negative log likelihood in nats, summed in double in row order; 0 if all are masked.
double cross_entropy_forward(const CrossEntropy& args, float* stats);
/// dlogits = (softmax - onehot) * scale / unmasked rows; masked rows are 0. May alias logits.
void cross_entropy_backward(const CrossEntropy& args, const float* stats, float scale,
                            quant::MutView dlogits);

}  // namespace zeropp::zero::ops
