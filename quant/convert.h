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

/// acc = round(acc + x) in acc's dtype, the sum in fp32. Sizes must match. A NaN sum or quotient
/// is the one NaN 0x7FC00000: payloads would differ between instruction sets.
void accumulate(MutView acc, ConstView x);

/// dst = round(src / divisor) in dst's dtype, the quotient in fp32 (true division).
void divide(ConstView src, float divisor, MutView dst);

/// Sum of squares in double, in element order, over 8 interleaved partial sums that are folded
/// in a fixed order: the same bits on every instruction set.
double sum_squares(ConstView x);

/// True if every element is finite.
bool all_finite(ConstView x);

}  // namespace zeropp::quant
