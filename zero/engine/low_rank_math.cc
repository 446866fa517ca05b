#include "zero/engine/low_rank_math.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace zeropp::zero {
namespace {

constexpr std::size_t kLanes = 16;

/// Interleaved partial sums, folded in order.
template <class Sum, class A, class B>
Sum dot(const A* a, const B* b, std::size_t n) {
  std::array<Sum, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      lanes[l] += static_cast<Sum>(a[i + l]) * static_cast<Sum>(b[i + l]);
    }
  }
  for (; i < n; ++i) lanes[i % kLanes] += static_cast<Sum>(a[i]) * static_cast<Sum>(b[i]);
  Sum sum = 0;
  for (const Sum lane : lanes) sum += lane;
  return sum;
}

/// What is left of v outside the span of the first k vectors.
void project_out(std::span<const float> vectors, std::size_t k, std::span<double> v) {
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t l = 0; l < k; ++l) {
      const float* u = vectors.data() + l * v.size();
      const double share = dot<double>(v.data(), u, v.size());
      for (std::size_t i = 0; i < v.size(); ++i) v[i] -= share * double{u[i]};
    }
  }
}

double length(std::span<const double> v) {
  return std::sqrt(dot<double>(v.data(), v.data(), v.size()));
}

}  // namespace

void project_rows(std::span<const float> m, std::size_t rows, std::size_t cols,
                  std::span<const float> right, std::span<float> left) {
  const std::size_t rank = left.size() / rows;
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < rank; ++k) {
      left[k * rows + i] = dot<float>(m.data() + i * cols, right.data() + k * cols, cols);
    }
  }
}

void project_columns(std::span<const float> m, std::size_t rows, std::size_t cols,
                     std::span<const float> left, std::span<float> right) {
  const std::size_t rank = left.size() / rows;
  std::fill(right.begin(), right.end(), 0.0F);
  for (std::size_t i = 0; i < rows; ++i) {
    const float* row = m.data() + i * cols;
    for (std::size_t k = 0; k < rank; ++k) {
      const float share = left[k * rows + i];
      float* to = right.data() + k * cols;
      for (std::size_t j = 0; j < cols; ++j) to[j] += row[j] * share;
    }
  }
}

void product_row(std::span<const float> left, std::span<const float> right, std::size_t rows,
                 std::size_t i, std::span<float> row) {
  const std::size_t rank = left.size() / rows;
  std::fill(row.begin(), row.end(), 0.0F);
  for (std::size_t k = 0; k < rank; ++k) {
    const float share = left[k * rows + i];
    const float* from = right.data() + k * row.size();
    for (std::size_t j = 0; j < row.size(); ++j) row[j] += share * from[j];
  }
}

void orthonormalise(
    std::span<float> vectors, std::size_t n,
    const std::function<void(std::size_t k, std::span<double> vector)>& replace) {
  std::vector<double> v(n);
  for (std::size_t k = 0; k < vectors.size() / n; ++k) {
    float* to = vectors.data() + k * n;
    std::copy(to, to + n, v.begin());
    const auto vanishes = [&] {
      const double before = length(v);
      project_out(vectors, k, v);
      return length(v) <= 1e-6 * before;
    };
    bool nothing = vanishes();
    if (nothing && replace) {
      replace(k, v);
      nothing = vanishes();
    }
    const double norm = length(v);
    for (std::size_t i = 0; i < n; ++i) {
      to[i] = nothing ? 0.0F : static_cast<float>(v[i] / norm);
    }
  }
}

}  // namespace zeropp::zero
