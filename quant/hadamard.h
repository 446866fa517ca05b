#pragma once

// Walsh-Hadamard rotations of consecutive groups of numbers, for codecs.

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/dtype.h"

namespace zeropp::quant {

/// H_1 = 1, H_2n = [[H_n, H_n], [H_n, -H_n]]: symmetric, H H = n I.
///
/// A span is cut in groups of n numbers, a power of two; what is left over is cut in groups of
/// smaller powers of two, largest first. A group x of m numbers becomes
///     y = H_m (s x / m)        and        x' = s m H_m (y / m)
/// with signs s = +-1. |y| <= max|x|: fp32 never overflows. Butterflies a + b, a - b go over
/// distances 1, 2, 4 ... m / 2, in fp32: that order defines the bits. A number that is not
/// finite makes its whole group the NaN 0x7FC00000, both ways (rotated, the groups at the end
/// that share n numbers); results of finite groups are finite (the largest fp32 where they
/// would overflow).
struct Rotation {
  static constexpr std::size_t kMaxGroup = 4096;
  std::size_t group = 32;
  /// Empty, or signs of the first min(span, kMaxGroup) numbers, repeated from there on.
  std::span<const float> signs;
};

/// y = rotated x; `y` holds x.n numbers and may not overlap x.
void rotate(const Rotation& r, ConstView x, float* y);
/// x = y rotated back; x may be y itself where it is fp32.
void unrotate(const Rotation& r, const float* y, MutView x);

/// Signs that every rank draws alike from a word.
void rotation_signs(std::uint32_t word, std::span<float> signs);

namespace reference {

/// One group, m <= kMaxGroup: `signs` null or m of them. Both may be in place.
void rotate_group(const float* x, const float* signs, std::size_t m, float* y);
void unrotate_group(const float* y, const float* signs, std::size_t m, float* x);

void rotate(const Rotation& r, ConstView x, float* y);
void unrotate(const Rotation& r, const float* y, MutView x);

}  // namespace reference

/// Calls use(first, m) for the groups of a span of n numbers.
template <class Use>
void for_rotation_groups(std::size_t group, std::size_t n, const Use& use) {
  std::size_t first = 0;
  for (std::size_t m = group; m != 0; m /= 2) {
    for (; n - first >= m; first += m) use(first, m);
  }
}

}  // namespace zeropp::quant
