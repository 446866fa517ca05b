#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace zeropp::zero {

/// Sums of PowerSGD, plain loops in a fixed order: the same bits on every CPU. M is rows x cols
/// row by row; factors hold their rank vectors one after the other (transposed matrices).

/// left[k][i] = sum over j of m[i][j] * right[k][j].
void project_rows(std::span<const float> m, std::size_t rows, std::size_t cols,
                  std::span<const float> right, std::span<float> left);
/// right[k][j] = sum over i of m[i][j] * left[k][i].
void project_columns(std::span<const float> m, std::size_t rows, std::size_t cols,
                     std::span<const float> left, std::span<float> right);
/// row[j] = sum over k of left[k][i] * right[k][j], row i of the product.
void product_row(std::span<const float> left, std::span<const float> right, std::size_t rows,
                 std::size_t i, std::span<float> row);

/// Makes the vectors of n numbers orthonormal: modified Gram-Schmidt in double, every vector
/// projected twice, rounded once. What is left of a vector counts as nothing below 1e-6 of its
/// length (the noise of fp32): `replace(k, vector)` fills it anew, null makes it zero. NaN
/// makes its vector and all later ones NaN.
void orthonormalise(
    std::span<float> vectors, std::size_t n,
    const std::function<void(std::size_t k, std::span<double> vector)>& replace);

}  // namespace zeropp::zero
