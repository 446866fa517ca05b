#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/block_layout.h"
#include "quant/dtype.h"
#include "quant/float_formats.h"
#include "quant/rounding.h"

namespace zeropp::quant {

/// Blocks of small floats under a scale. Bytes as in block_layout.h, metadata of a block:
///
/// kFp32 (fp8, nf4): one fp32 scale, with A = max |x| of the block and D the largest value of
/// the element format:
///   A = 0: scale 0, every code that of +0.
///   A < 2^-100: scale = A / D rounded up to fp32, v = (x * 2^100) * (1 / (scale * 2^100)).
///   else: scale = A / D, one ulp less if D * scale overflowed; v = x * (D / A).
///   A not finite: scale NaN (0x7FC00000), every code that of +0.
/// kE8M0 (MX): e = max(-127, floor(log2 A) - emax), the byte e + 127; v = x * 2^-e. A = 0: byte
///   0, codes +0. A not finite: byte 255 (NaN), codes +0.
/// The code is the nearest value of v, ties to even, saturating. All in fp32, one rounding per
/// operation. Stochastic (unbiased): the lower neighbour, or the upper one if u < the distance
/// from the lower in gaps, u = RoundingNoise::uniform(index of the number in the span); and an
/// MX block whose A * 2^-e is beyond the largest value takes e + 1, so that nothing clips; not
/// where e + 1 could overflow fp32. Decoding is value * scale in fp32; NaN is always
/// 0x7FC00000.
enum class Element : std::uint8_t { kE4M3, kE5M2, kE2M3, kE3M2, kE2M1, kNf4 };
enum class BlockScaleKind : std::uint8_t { kFp32, kE8M0 };

struct FloatBlockFormat {
  Element element = Element::kE4M3;
  BlockScaleKind scale = BlockScaleKind::kFp32;
  std::size_t block = 128;  ///< Or kWholeSpan.
  bool stochastic = false;

  BlockLayout layout() const;
};

/// Calls use with the element format's type as a value.
template <class Use>
inline void with_element(Element e, const Use& use) {
  switch (e) {
    case Element::kE4M3:
      return use(E4M3());
    case Element::kE5M2:
      return use(E5M2());
    case Element::kE2M3:
      return use(E2M3());
    case Element::kE3M2:
      return use(E3M2());
    case Element::kE2M1:
      return use(E2M1());
    case Element::kNf4:
      return use(Nf4());
  }
}

/// v = x * pre * mul; `zero`: every code is that of +0.
struct BlockFactors {
  float pre = 1, mul = 0;
  bool zero = true;
};

/// From A (NaN or infinite if any number is); writes the block's metadata.
BlockFactors write_scale(const FloatBlockFormat& f, float absmax, std::byte* scale);
float read_scale(const FloatBlockFormat& f, const std::byte* scale);

/// Numbers that the kernels below take at once.
inline constexpr std::size_t kMaxFloatRun = 4096;

/// Kernels on fp32 at any instruction set, with the bytes of reference::.
/// Largest magnitude; NaN wins.
float absmax_of(const float* x, std::size_t n);
/// A block, or a piece of whole groups of one, under known factors; n <= kMaxFloatRun. x[0] is
/// number `first` of the span; `noise` is null unless stochastic.
void encode_float_run(Element e, const float* x, std::size_t n, BlockFactors by,
                      std::uint64_t first, const RoundingNoise* noise, std::byte* out);
/// n <= kMaxFloatRun numbers from a block's start; the last block may be short.
void encode_float_blocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                         std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                         std::byte* payload);
/// The same numbers again, or a piece of whole groups of a larger block; `add`: out += value.
void decode_float_blocks(const FloatBlockFormat& f, const std::byte* scales,
                         const std::byte* payload, std::size_t n, bool add, float* out);

namespace reference {
float absmax_of(const float* x, std::size_t n);
void encode_float_run(Element e, const float* x, std::size_t n, BlockFactors by,
                      std::uint64_t first, const RoundingNoise* noise, std::byte* out);
void encode_float_blocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                         std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                         std::byte* payload);
void decode_float_blocks(const FloatBlockFormat& f, const std::byte* scales,
                         const std::byte* payload, std::size_t n, bool add, float* out);
}  // namespace reference

}  // namespace zeropp::quant
