#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zero/checkpoint.h"
#include "zero/engine/context.h"

namespace zeropp::zero {

/// PowerSGD (Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient
/// compression", NeurIPS 2019, algorithms 1 and 2) for the matrices that travels_low_rank()
/// names. With G the local gradient (rows x cols) and E this rank's error:
///   M = G + E;  P = M orth(Q);  P = orth(mean of P);  Q = mean of M^T P;  G^ = P Q^T;  E = M -
///   G^
/// orth() as in low_rank_math.h; a vector of Q that is nothing (so all of them at first) is
/// drawn anew, keyed by (seed, tensor, step, micro-step, vector). Both means are all-reduces
/// over the world with the run's algorithm, `exact` in the wire dtype, of the whole bucket:
/// every rank ends with the same G^, rank * (rows + cols) words a matrix. G^ is rounded to the
/// gradient dtype, and E is what that leaves of M.
///
/// E (fp32, MemoryKind::kResidual, the whole matrix on every rank) and Q belong to a step until
/// it is applied: commit() keeps them, rollback() forgets them (a non-finite gradient leaves no
/// trace). E is kept without the loss scale.
class LowRank {
 public:
  explicit LowRank(EngineContext& context);

  /// `in`: whole local gradients times loss_scale. `out`: mean gradients' shards at modulus
  /// `result`, in the gradient dtype; may be `in`.
  void reduce(std::span<const hierarchy::ReduceTensor> tensors, int result, float loss_scale,
              const hierarchy::CallOptions& options, const hierarchy::ReduceOptions& reduce);

  void commit();
  void rollback();
  /// As new: the weights were replaced.
  void forget();

  /// What is kept between steps; `restore` wants whole matrices, or empty ones for nothing.
  LowRankState state() const;
  void restore(const LowRankState& state);

 private:
  struct State {
    quant::Tensor error, right;
  };
  /// What an exchange works on.
  struct Matrix {
    std::size_t rows = 0, cols = 0;
    quant::Tensor left, right;
  };

  std::span<float> start(const hierarchy::ReduceTensor& t, float loss_scale);
  Matrix project(const hierarchy::ReduceTensor& t, std::span<const float> m);
  void finish(const hierarchy::ReduceTensor& t, int result, float loss_scale,
              const Matrix& matrix);
  quant::Tensor vectors(quant::MemoryKind kind, std::size_t n) const;

  EngineContext& context_;
  std::vector<State> kept_, pending_;  ///< By tensor; of the last applied step, of this one.
};

}  // namespace zeropp::zero
