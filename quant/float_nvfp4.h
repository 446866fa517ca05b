#pragma once

#include <cstddef>

#include "quant/block_layout.h"
#include "quant/rounding.h"

namespace zeropp::quant {

/// NVFP4: E2M1 numbers, an E4M3 scale for 16 of them, one fp32 scale t for the span (NVIDIA,
/// Pretraining LLMs with NVFP4, 2025). Bytes as in block_layout.h: the header is t, a block's
/// metadata the byte of its scale s.
///
/// M = max |x| over the blocks that are all finite; G = 448 * 6, or 256 * 6 under 4over6 so
/// that a scale half as large again is still a number.
///   t = M / G in fp32, one ulp less if G * t overflowed; rounded up if M < 2^-100; 0 if M = 0.
/// Of a block with A = max |x|:
///   A not finite: s = NaN (0x7F), codes +0. A = 0: s = 0, codes +0.
///   s = E4M3(fp32(A / (6 * t))), the quotient in double; s = 0: codes +0.
///   p = s * t in double; v = x * fp32(1 / p), or (x * 2^100) * fp32(1 / (p * 2^100)) if
///   A < 2^-100; the code is the nearest E2M1 value of v, ties to even, saturating.
///   4over6: also with 4 * t for 6 * t; the smaller error E * p^2 wins, 6 where equal (Cook et
///   al., Four Over Six, 2025). E is the sum of (|value| - |v|)^2 in fp32, over zeros where a
///   block is short: of numbers 4j .. 4j + 3 (first + third) + (second + fourth), of those sums
///   (0 + 1) + (2 + 3). E * p^2 is a double, and infinite where s = 0.
/// Decoding is fp32(value * p), the product in double; NaN is 0x7FC00000.
///   Stochastic: s is rounded up, unless it rounds to zero, so that nothing clips; codes as in
///   float_block.h. Unbiased but for blocks that vanish: those below 2^-19 of M.
enum class Nvfp4Rule { kMax, k4Over6, kStochastic };

constexpr float nvfp4_range(Nvfp4Rule rule) { return rule == Nvfp4Rule::k4Over6 ? 1536 : 2688; }

inline constexpr std::size_t kNvfp4Block = 16;

float nvfp4_span_scale(Nvfp4Rule rule, float finite_max);

/// The kernels take n <= 4096 numbers from a block's start.
/// x[0] is number `first` of the span; `noise` is null unless stochastic.
/// M of them.
float nvfp4_finite_max(const float* x, std::size_t n);
void encode_nvfp4_blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                         std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                         std::byte* payload);
/// `add`: out += value.
void decode_nvfp4_blocks(float t, const std::byte* scales, const std::byte* payload,
                         std::size_t n, bool add, float* out);

namespace reference {
float nvfp4_finite_max(const float* x, std::size_t n);
void encode_nvfp4_blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                         std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                         std::byte* payload);
void decode_nvfp4_blocks(float t, const std::byte* scales, const std::byte* payload,
                         std::size_t n, bool add, float* out);
}  // namespace reference

}  // namespace zeropp::quant
