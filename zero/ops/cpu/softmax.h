#pragma once

#include <cstddef>

#include "quant/dtype.h"

namespace zeropp::zero::ops {

/// A tile of causal attention of one head: `rows` queries from position `first`, keys 0 ..
/// first + rows - 1. All matrices have `ld` columns, a multiple of 16 >= first + rows.
struct SoftmaxTile {
  float* scores = nullptr;  ///< q k^T, unscaled; right of the diagonal ignored; overwritten.
  std::size_t first = 0, rows = 0, ld = 0;
  float scale = 1;  ///< 1 / sqrt(head_dim)
  quant::Dtype dtype = quant::Dtype::kF32;
  void* probabilities = nullptr;  ///< May alias scores in fp32. 0 right of the diagonal.
  const float* dprobabilities = nullptr;  ///< Backward only.
  void* dscores = nullptr;  ///< Backward only, of the unscaled score; may alias dprobabilities.
};

/// Writes probabilities and, per row, the maximum of scale * score and 1 / sum of exponentials.
void softmax_forward(const SoftmaxTile& tile, float* max, float* inverse);
/// Writes probabilities (the same bits as forward) and dscores.
void softmax_backward(const SoftmaxTile& tile, const float* max, const float* inverse);

}  // namespace zeropp::zero::ops
