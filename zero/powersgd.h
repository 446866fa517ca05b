#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "zero/engine.h"

namespace zeropp::zero {

/// PowerSGD in place of codecs of gradients: which requests and tensors it means. What it does
/// is in engine/low_rank.h.

/// Rank of "powersgd" (4) or "powersgd:rank=R"; 0: the spec names something else. UsageError:
/// an unknown key, or R outside 1 .. 1024.
int powersgd_rank(std::string_view spec);
std::string powersgd_spec(int rank);
/// The same of one spec a level: all must be equal where one names PowerSGD.
int powersgd_rank(std::span<const std::string> levels);

/// A tensor as a matrix: its first dimension x all others.
struct MatrixShape {
  std::size_t rows = 0, cols = 0;
};
MatrixShape matrix_shape(const TensorSpec& tensor);

/// Does a tensor travel as two factors? Not if PowerSGD is off, an exact rule covers it, it has
/// fewer than two dimensions, or rank * (rows + cols) > rows * cols / 2.
bool travels_low_rank(const EngineConfig& config, const TensorSpec& tensor);

}  // namespace zeropp::zero
