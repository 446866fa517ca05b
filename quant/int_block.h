#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/dtype.h"
#include "quant/rounding.h"

namespace zeropp::quant {

/// Symmetric integer blocks: one scale for `block` numbers, b bits a number.
///
/// Wire bytes of n numbers in B = ceil(n / block) blocks:
///   1. B scales, fp32 little-endian, in block order. No alignment is assumed.
///   2. B block payloads, in block order, each a whole number of bytes.
///      8 bits: byte i holds number i of the block as two's complement.
///      4 bits: the block is cut in groups of 32 numbers (the last may hold fewer). A group of
///      g numbers is h = ceil(g / 2) bytes; the low nibble of byte i is number i, the high
///      nibble number h + i (0 where the group ends), two's complement. SIMD code unpacks whole
///      registers this way, without interleaving.
///
/// Let A = max |x| of the block, L = 2^(b-1) - 1 and D = L (kSymmetric) or L + 1 (kDeepspeed).
///   A is NaN or infinite: the scale is NaN (0x7FC00000), every q is 0.
///   A = 0: scale 0, every q is 0.
///   A < 2^-100 ("tiny", where A / D or D / A may leave the normal range): scale = A / D
///   rounded
///     up to fp32, v = (x * 2^100) / (scale * 2^100).
///   else: scale = A / D, one ulp less if D * scale overflowed; v = x * (D / A).
///   q = min(L, nearest-even(v)), or stochastically floor(v) + (u < v - floor(v)) clamped to
///     [-D, L], u = RoundingNoise::uniform(index of the number in the span).
/// All in fp32, one rounding per operation. Decoding is q * scale in fp32.
enum class BlockScheme : std::uint8_t { kSymmetric, kDeepspeed };

struct IntBlockFormat {
  int bits = 8;              ///< 8 or 4.
  std::size_t block = 2048;  ///< 1 .. 2^30.
  BlockScheme scheme = BlockScheme::kSymmetric;
  Rounding rounding = Rounding::kNearest;  ///< Not kShift.

  static constexpr std::size_t kScaleBytes = 4;
  static constexpr std::size_t kGroup = 32;
  constexpr bool stochastic() const { return draws(rounding); }
  constexpr int max_q() const { return (1 << (bits - 1)) - 1; }
  constexpr float divisor() const {
    return static_cast<float>(scheme == BlockScheme::kSymmetric ? max_q() : max_q() + 1);
  }
  constexpr std::uint64_t blocks(std::uint64_t n) const {
    return n / block + (n % block != 0 ? 1 : 0);
  }
  /// Bytes of m numbers at the start of a block (m a multiple of kGroup, or all of the block).
  constexpr std::uint64_t packed(std::uint64_t m) const {
    return bits == 8 ? m : m / 2 + m % 2;
  }
  /// Where block k's payload begins, for a span of n numbers.
  constexpr std::uint64_t payload_offset(std::uint64_t n, std::uint64_t k) const {
    return blocks(n) * kScaleBytes + k * packed(block);
  }
  constexpr std::uint64_t wire_size(std::uint64_t n) const {
    return payload_offset(n, n / block) + packed(n % block);
  }
};

using WireList = std::span<const std::span<const std::byte>>;

/// Kernels on whole spans; sizes have been checked. `noise` is null unless
/// format.stochastic().
/// Fastest instruction set at run time; `reference::` has the plain loops with the same bits.
void encode_blocks(const IntBlockFormat& f, ConstView x, const RoundingNoise* noise,
                   std::byte* wire);
void decode_blocks(const IntBlockFormat& f, const std::byte* wire, MutView out);
void decode_add_blocks(const IntBlockFormat& f, const std::byte* wire, std::span<float> sum);
void decode_sum_blocks(const IntBlockFormat& f, WireList wires, float divisor, MutView out);
void reduce_encode_blocks(const IntBlockFormat& from, WireList wires, std::size_t n,
                          float divisor, const IntBlockFormat& to, const RoundingNoise* noise,
                          std::byte* wire);

namespace reference {
void encode_blocks(const IntBlockFormat& f, ConstView x, const RoundingNoise* noise,
                   std::byte* wire);
/// The scale of a tiny block.
float tiny_scale(float a, float d);
/// One block whose max |x| is `a`; x = numbers first .. first + x.n of the span. Writes its
/// scale and payload.
void encode_block(const IntBlockFormat& f, float a, ConstView x, std::uint64_t first,
                  const RoundingNoise* noise, std::byte* scale, std::byte* payload);
void decode_blocks(const IntBlockFormat& f, const std::byte* wire, MutView out);
void decode_add_blocks(const IntBlockFormat& f, const std::byte* wire, std::span<float> sum);
void decode_sum_blocks(const IntBlockFormat& f, WireList wires, float divisor, MutView out);
void reduce_encode_blocks(const IntBlockFormat& from, WireList wires, std::size_t n,
                          float divisor, const IntBlockFormat& to, const RoundingNoise* noise,
                          std::byte* wire);
}  // namespace reference

}  // namespace zeropp::quant
