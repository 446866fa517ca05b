#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quant/codec.h"

namespace zeropp::quant {

/// Where things lie in the wire of a codec that cuts a span into blocks: a header for the span
/// (if n > 0), the metadata of every block in block order, then the payloads of the blocks in
/// block order. No alignment is assumed.
///
/// A payload holds codes of 1 to 8 bits. A block is cut in groups of 128 (the last may hold
/// fewer). A group of m codes is a sequence of bit planes, one for each power of two in the
/// width, widest first: 6 bits = 4 + 2, 7 = 4 + 2 + 1. The widest plane holds the lowest bits.
/// A plane of w bits is h = ceil(m * w / 8) bytes: the w bits of byte j that start at w * t are
/// those of code j + t * h, 0 where the group ends. Full groups have their exact cost.
struct BlockLayout {
  int bits = 8;
  std::size_t block = 1;         ///< kWholeSpan: one block, whatever n is.
  std::size_t block_bytes = 0;   ///< Metadata of a block.
  std::size_t header_bytes = 0;  ///< Metadata of the span.

  static constexpr std::size_t kGroup = 128;

  static constexpr std::uint64_t packed_group(int width, std::uint64_t m) {
    std::uint64_t bytes = 0;
    for (const unsigned w : {8U, 4U, 2U, 1U}) {
      if ((static_cast<unsigned>(width) & w) != 0) bytes += (m * w + 7) / 8;
    }
    return bytes;
  }
  constexpr std::uint64_t blocks(std::uint64_t n) const {
    return n / block + (n % block != 0 ? 1 : 0);
  }
  /// Bytes of m codes at the start of a block (m a multiple of kGroup, or all of the block).
  constexpr std::uint64_t packed(std::uint64_t m) const {
    return m / kGroup * (kGroup / 8) * static_cast<std::uint64_t>(bits) +
           packed_group(bits, m % kGroup);
  }
  constexpr std::uint64_t block_offset(std::uint64_t k) const {
    return header_bytes + k * block_bytes;
  }
  /// Where the codes of block k begin, for a span of n > 0 numbers.
  constexpr std::uint64_t payload_offset(std::uint64_t n, std::uint64_t k) const {
    return block_offset(blocks(n)) + (k == 0 ? 0 : k * packed(block));
  }
  constexpr std::uint64_t wire_size(std::uint64_t n) const {
    return n == 0 ? 0 : payload_offset(n, n / block) + packed(n % block);
  }
  constexpr WireBytes wire_bytes(std::uint64_t n) const {
    WireBytes w;
    if (n == 0) return w;
    const auto width = static_cast<std::uint64_t>(bits);
    w.scale = block_offset(blocks(n));
    w.payload = n / 8 * width + n % 8 * width / 8;
    w.padding = wire_size(n) - w.scale - w.payload;
    return w;
  }
};

namespace bit_planes {

/// One plane: bits kShift .. kShift + kW of m codes. Returns where the next plane begins.
template <int kW, int kShift>
inline std::byte* pack_plane(const std::uint8_t* codes, std::size_t m, std::byte* out) {
  const std::size_t h = (m * kW + 7) / 8;
  for (std::size_t j = 0; j < h; ++j) {
    int byte = 0;
    for (std::size_t t = 0; t < 8 / kW; ++t) {
      byte |= ((codes[j + t * h] >> kShift) & ((1 << kW) - 1)) << (kW * t);
    }
    out[j] = static_cast<std::byte>(byte);
  }
  return out + h;
}

template <int kW, int kShift>
inline const std::byte* unpack_plane(const std::byte* in, std::size_t m, std::uint8_t* codes) {
  const std::size_t h = (m * kW + 7) / 8;
  for (std::size_t t = 0; t < 8 / kW; ++t) {
    std::uint8_t* to = codes + t * h;
    for (std::size_t j = 0; j < h; ++j) {
      const int part = ((static_cast<int>(in[j]) >> (kW * t)) & ((1 << kW) - 1)) << kShift;
      to[j] = static_cast<std::uint8_t>(kShift == 0 ? part : to[j] | part);
    }
  }
  return in + h;
}

/// Packs m <= kGroup codes; `codes` may be read up to 8 bytes past m, where they are zero.
template <int kBits>
inline void pack_group(const std::uint8_t* codes, std::size_t m, std::byte* out) {
  if constexpr (kBits == 8) {
    std::memcpy(out, codes, m);
  } else {
    if constexpr ((kBits & 4) != 0) out = pack_plane<4, 0>(codes, m, out);
    if constexpr ((kBits & 2) != 0) out = pack_plane<2, kBits & 4>(codes, m, out);
    if constexpr ((kBits & 1) != 0) pack_plane<1, kBits & 6>(codes, m, out);
  }
}

/// The opposite; `codes` may be written up to 8 bytes past m.
template <int kBits>
inline void unpack_group(const std::byte* in, std::size_t m, std::uint8_t* codes) {
  if constexpr (kBits == 8) {
    std::memcpy(codes, in, m);
  } else {
    if constexpr ((kBits & 4) != 0) in = unpack_plane<4, 0>(in, m, codes);
    if constexpr ((kBits & 2) != 0) in = unpack_plane<2, kBits & 4>(in, m, codes);
    if constexpr ((kBits & 1) != 0) unpack_plane<1, kBits & 6>(in, m, codes);
  }
}

/// Calls use with m as a constant for the usual sizes, which the compiler then vectorises.
template <class Use>
inline void with_size(std::size_t m, const Use& use) {
  switch (m) {
    case 16:
      return use(std::integral_constant<std::size_t, 16>());
    case 32:
      return use(std::integral_constant<std::size_t, 32>());
    case 64:
      return use(std::integral_constant<std::size_t, 64>());
    case 128:
      return use(std::integral_constant<std::size_t, 128>());
    default:
      return use(m);
  }
}

/// Calls use with the width 1 .. 8 as a constant.
template <class Use>
inline void with_bits(int bits, const Use& use) {
  switch (bits) {
    case 1:
      return use(std::integral_constant<int, 1>());
    case 2:
      return use(std::integral_constant<int, 2>());
    case 3:
      return use(std::integral_constant<int, 3>());
    case 4:
      return use(std::integral_constant<int, 4>());
    case 5:
      return use(std::integral_constant<int, 5>());
    case 6:
      return use(std::integral_constant<int, 6>());
    case 7:
      return use(std::integral_constant<int, 7>());
    default:
      return use(std::integral_constant<int, 8>());
  }
}

/// Code i of a block's m codes, from the definition, for references and tests: bit by bit.
inline std::uint8_t get(int bits, const std::byte* payload, std::size_t m, std::size_t i) {
  constexpr std::size_t kGroup = BlockLayout::kGroup;
  const std::size_t group = i / kGroup, g = m - group * kGroup < kGroup ? m % kGroup : kGroup;
  const std::byte* plane = payload + group * kGroup / 8 * static_cast<std::size_t>(bits);
  int code = 0, shift = 0;
  for (const int w : {8, 4, 2, 1}) {
    if ((bits & w) == 0) continue;
    const std::size_t h = (g * static_cast<std::size_t>(w) + 7) / 8, at = i % kGroup;
    const int byte = static_cast<int>(plane[at % h]);
    code |= ((byte >> (w * static_cast<int>(at / h))) & ((1 << w) - 1)) << shift;
    plane += h;
    shift += w;
  }
  return static_cast<std::uint8_t>(code);
}

/// Sets code i, whose bits are zero.
inline void put(int bits, std::byte* payload, std::size_t m, std::size_t i, int code) {
  constexpr std::size_t kGroup = BlockLayout::kGroup;
  const std::size_t group = i / kGroup, g = m - group * kGroup < kGroup ? m % kGroup : kGroup;
  std::byte* plane = payload + group * kGroup / 8 * static_cast<std::size_t>(bits);
  for (const int w : {8, 4, 2, 1}) {
    if ((bits & w) == 0) continue;
    const std::size_t h = (g * static_cast<std::size_t>(w) + 7) / 8, at = i % kGroup;
    plane[at % h] |=
        static_cast<std::byte>((code & ((1 << w) - 1)) << (w * static_cast<int>(at / h)));
    code >>= w;
    plane += h;
  }
}

}  // namespace bit_planes
}  // namespace zeropp::quant
