#pragma once

#include <bit>
#include <cstdint>

#include "quant/dtype.h"

namespace zeropp::quant {

// Scalar reference conversions, round to nearest even; NaN stays NaN (quiet), overflow is Inf.
std::uint16_t bf16_bits(float x);
std::uint16_t f16_bits(float x);
inline float from_bf16_bits(std::uint16_t b) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16);
}
float from_f16_bits(std::uint16_t b);

/// x rounded to dtype and back.
float round_to(Dtype d, float x);

/// dst = src converted (RNE); sizes must match. Same dtype copies bytes. May not overlap
/// unless identical. SIMD, the same bits as the scalar functions above.
void convert(ConstView src, MutView dst);

/// acc = round(acc + x) in acc's dtype, the sum in fp32. Sizes must match. A NaN sum or
/// quotient is the one NaN 0x7FC00000: payloads would differ between instruction sets.
void accumulate(MutView acc, ConstView x);

/// dst = round(src / divisor) in dst's dtype, the quotient in fp32 (true division).
void divide(ConstView src, float divisor, MutView dst);

/// to = round(x / divisor + before) in `to`'s dtype, fp32 arithmetic and one rounding: a hop of
/// a ring. `before` has `to`'s dtype and may be `to`; null data means x / divisor alone.
/// Returns how many non-zero sums were rounded to zero.
std::uint64_t divide_add(ConstView x, float divisor, ConstView before, MutView to);

/// Largest magnitude (as the bits of an fp32) that rounds to zero in `d`; 0 for fp32.
constexpr std::uint32_t underflow_limit(Dtype d) {
  switch (d) {
    case Dtype::kBF16:
      return 0x00008000;  // Half of 2^-133; ties go to the even zero.
    case Dtype::kF16:
      return 0x33000000;  // 2^-25.
    case Dtype::kF32:
      break;
  }
  return 0;
}

/// Sum of squares in double, in element order, over 8 interleaved partial sums that are folded
/// in a fixed order: the same bits on every instruction set.
double sum_squares(ConstView x);

/// True if every element is finite.
bool all_finite(ConstView x);

}  // namespace zeropp::quant
