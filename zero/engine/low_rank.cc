#include "zero/engine/low_rank.h"

#include <chrono>
#include <utility>

#include "quant/convert.h"
#include "quant/rng.h"
#include "zero/engine/low_rank_math.h"
#include "zero/powersgd.h"

namespace zeropp::zero {

using hierarchy::ReduceTensor;
using quant::Dtype;
using quant::MemoryKind;
using quant::Tensor;

namespace {

std::span<float> numbers(Tensor& t) { return {t.f32(), t.size()}; }
std::span<const float> numbers(const Tensor& t) { return {t.f32(), t.size()}; }

/// Adds to the rank's codec seconds what runs between exchanges.
class Stopwatch {
 public:
  explicit Stopwatch(hierarchy::Comm& comm) : comm_(comm) {}
  ~Stopwatch() {
    const auto passed = std::chrono::steady_clock::now() - start_;
    comm_.codec_seconds += std::chrono::duration<double>(passed).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  hierarchy::Comm& comm_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The mean of one factor of every matrix, in place.
template <class Factor>
void mean(hierarchy::Comm& comm, const hierarchy::CallOptions& options,
          const hierarchy::ReduceOptions& reduce, std::span<const ReduceTensor> tensors,
          const Factor& factor) {
  std::vector<ReduceTensor> factors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Tensor& x = factor(i);
    factors.push_back({.tensor = tensors[i].tensor,
                       .numel = x.size(),
                       .in = x.view(),
                       .out = x.view(),
                       .codecs = {}});
  }
  all_reduce(comm, options, reduce, factors);
}

}  // namespace

LowRank::LowRank(EngineContext& context)
    : context_(context), kept_(context.tensors().size()), pending_(context.tensors().size()) {}

Tensor LowRank::vectors(MemoryKind kind, std::size_t n) const {
  const auto rank = static_cast<std::size_t>(context_.config.powersgd_rank);
  return {&context_.memory, kind, Dtype::kF32, rank * n};
}

/// M, where this step's E will be.
std::span<float> LowRank::start(const ReduceTensor& t, float loss_scale) {
  const Tensor& kept = kept_[t.tensor].error;
  Tensor& error = pending_[t.tensor].error;
  const bool fresh = !error;
  if (fresh) error = Tensor(&context_.memory, MemoryKind::kResidual, Dtype::kF32, t.numel);
  const std::span<float> m = numbers(error);
  if (fresh && !kept) {
    quant::convert(t.in, error.view());
    return m;
  }
  const float* before = fresh ? kept.f32() : error.f32();
  Tensor gradient(&context_.memory, MemoryKind::kWorkspace, Dtype::kF32, t.numel);
  quant::convert(t.in, gradient.view());
  const float* g = gradient.f32();
  for (std::size_t i = 0; i < m.size(); ++i) m[i] = g[i] + before[i] * loss_scale;
  return m;
}

/// P = M orth(Q).
LowRank::Matrix LowRank::project(const ReduceTensor& t, std::span<const float> m) {
  const auto [rows, cols] = matrix_shape(context_.tensor(t.tensor));
  Matrix x{.rows = rows,
           .cols = cols,
           .left = vectors(MemoryKind::kComm, rows),
           .right = vectors(MemoryKind::kComm, cols)};
  const Tensor& pending = pending_[t.tensor].right;
  const Tensor& before = pending ? pending : kept_[t.tensor].right;
  if (before) {
    quant::convert(before.view(), x.right.view());
  } else {
    x.right.zero();
  }
  orthonormalise(numbers(x.right), cols, [&](std::size_t k, std::span<double> vector) {
    const quant::Philox random({.seed = context_.config.seed,
                                .purpose = quant::Purpose::kShared,
                                .tensor = t.tensor,
                                .step = context_.step,
                                .micro = context_.micro,
                                .part = static_cast<std::uint32_t>(k),
                                .level = 7});  // No level of a hierarchy: codecs share this.
    for (std::size_t j = 0; j < vector.size(); ++j) vector[j] = random.normal(j);
  });
  project_rows(m, rows, cols, numbers(std::as_const(x.right)), numbers(x.left));
  return x;
}

/// G^ into `out`, E and Q into the step's state.
void LowRank::finish(const ReduceTensor& t, int result, float loss_scale,
                     const Matrix& matrix) {
  State& state = pending_[t.tensor];
  state.right = vectors(MemoryKind::kResidual, matrix.cols);
  quant::convert(matrix.right.view(), state.right.view());
  Tensor whole;  // G^ in the gradient dtype, where `out` is not all of it.
  if (result != 1) {
    whole = Tensor(&context_.memory, MemoryKind::kWorkspace, t.out.dtype, t.numel);
  }
  const quant::MutView approximation = result == 1 ? t.out : whole.view();
  std::vector<float> row(matrix.cols);
  for (std::size_t i = 0; i < matrix.rows; ++i) {
    product_row(numbers(matrix.left), numbers(matrix.right), matrix.rows, i, row);
    const auto place = approximation.slice(i * matrix.cols, matrix.cols);
    quant::convert(quant::view(row), place);
    quant::convert(place, quant::mut_view(row));
    float* error = state.error.f32() + i * matrix.cols;
    for (std::size_t j = 0; j < matrix.cols; ++j) error[j] = (error[j] - row[j]) / loss_scale;
  }
  if (result != 1) narrow_shard(context_, t.tensor, approximation, 1, t.out, result);
}

void LowRank::reduce(std::span<const ReduceTensor> tensors, int result, float loss_scale,
                     const hierarchy::CallOptions& options,
                     const hierarchy::ReduceOptions& reduce) {
  std::vector<Matrix> matrices;
  matrices.reserve(tensors.size());
  {
    const Stopwatch timer(context_.comm);
    for (const ReduceTensor& t : tensors) {
      matrices.push_back(project(t, start(t, loss_scale)));
    }
  }
  mean(context_.comm, options, reduce, tensors,
       [&](std::size_t i) -> Tensor& { return matrices[i].left; });
  {
    const Stopwatch timer(context_.comm);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Matrix& x = matrices[i];
      orthonormalise(numbers(x.left), x.rows, nullptr);
      project_columns(numbers(std::as_const(pending_[tensors[i].tensor].error)), x.rows, x.cols,
                      numbers(std::as_const(x.left)), numbers(x.right));
    }
  }
  mean(context_.comm, options, reduce, tensors,
       [&](std::size_t i) -> Tensor& { return matrices[i].right; });
  const Stopwatch timer(context_.comm);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    finish(tensors[i], result, loss_scale, matrices[i]);
  }
}

void LowRank::commit() {
  for (std::size_t t = 0; t < pending_.size(); ++t) {
    if (pending_[t].error) kept_[t] = std::move(pending_[t]);
  }
  rollback();
}

void LowRank::rollback() {
  for (State& state : pending_) state = {};
}

void LowRank::forget() {
  rollback();
  for (State& state : kept_) state = {};
}

LowRankState LowRank::state() const {
  LowRankState state;
  for (const State& kept : kept_) {
    const auto copy = [](const Tensor& x) {
      return x ? std::vector<float>(x.f32(), x.f32() + x.size()) : std::vector<float>();
    };
    state.error.push_back(copy(kept.error));
    state.right.push_back(copy(kept.right));
  }
  return state;
}

void LowRank::restore(const LowRankState& state) {
  forget();
  for (std::uint32_t t = 0; t < kept_.size(); ++t) {
    if (t >= state.error.size() || state.error[t].size() != context_.tensor(t).numel) continue;
    State& kept = kept_[t];
    kept.error =
        Tensor(&context_.memory, MemoryKind::kResidual, Dtype::kF32, state.error[t].size());
    quant::convert(quant::view(state.error[t]), kept.error.view());
    const std::size_t cols = matrix_shape(context_.tensor(t)).cols;
    const auto rank = static_cast<std::size_t>(context_.config.powersgd_rank);
    if (state.right[t].size() != rank * cols) continue;  // Of another rank: drawn anew.
    kept.right = vectors(MemoryKind::kResidual, cols);
    quant::convert(quant::view(state.right[t]), kept.right.view());
  }
}

}  // namespace zeropp::zero
