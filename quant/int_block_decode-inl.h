// Decoding a tile of an integer block, and summing it over sources. See
// int_block.h for the bytes. Included once per instruction set.

#if defined(ZEROPP_QUANT_INT_BLOCK_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_INT_BLOCK_DECODE_INL_H_
#undef ZEROPP_QUANT_INT_BLOCK_DECODE_INL_H_
#else
#define ZEROPP_QUANT_INT_BLOCK_DECODE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "quant/int_block.h"
#include "quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

using DU8 = hn::Rebind<std::uint8_t, DF>;
using DI8 = hn::Rebind<std::int8_t, DF>;

/// q * scale for one block's scale. With 16 lanes all sixteen 4-bit values fit one register.
template <int kBits>
class Decoder {
 public:
  HWY_INLINE Decoder(const std::byte* scale_at, const std::byte* payload) : payload_(payload) {
    float scale;
    std::memcpy(&scale, scale_at, sizeof scale);
    scale_ = hn::Set(DF(), scale);
    if constexpr (kTable) {
      alignas(64) static constexpr float kValues[16] = {0,  1,  2,  3,  4,  5,  6,  7,
                                                        -8, -7, -6, -5, -4, -3, -2, -1};
      scale_ = hn::Mul(hn::Load(DF(), kValues), scale_);
    }
  }

  /// Calls use(j, values) for vectors j of kVectors from number `first` of the block, where
  /// both are whole groups.
  template <std::size_t kVectors, class Use>
  HWY_INLINE void vectors(std::size_t first, const Use& use) const {
    if constexpr (kBits == 8) {
      HWY_UNROLL(8)
      for (std::size_t j = 0; j < kVectors; ++j) use(j, bytes(first + j * kLanes));
    } else {
      constexpr std::size_t kHalf = kGroupVectors / 2;
      HWY_UNROLL(8)
      for (std::size_t j = 0; j < kVectors / 2; ++j) {
        const std::size_t group = j / kHalf, part = j % kHalf;
        const VU packed = load_packed((first + group * kGroup) / 2 + part * kLanes);
        use(group * kGroupVectors + part, low_nibbles(packed));
        use(group * kGroupVectors + part + kHalf, high_nibbles(packed));
      }
    }
  }

  /// The last m < 32 numbers of the block, from number `first` (a whole group), as fp32.
  HWY_INLINE void some(std::size_t first, std::size_t m, float* out) const {
    alignas(64) std::byte bytes_of_group[kGroup] = {};
    const std::size_t half = (m + 1) / 2;
    Decoder padded(*this);
    padded.payload_ = bytes_of_group;
    if constexpr (kBits == 8) {
      std::memcpy(bytes_of_group, payload_ + first, m);
    } else {
      std::memcpy(bytes_of_group, payload_ + first / 2, half);
    }
    alignas(64) float values[kGroup];
    padded.template vectors<kGroupVectors>(
        0, [&](std::size_t j, VF v) { hn::Store(v, DF(), values + j * kLanes); });
    if constexpr (kBits == 8) {
      std::memcpy(out, values, m * sizeof(float));
    } else {
      std::memcpy(out, values, half * sizeof(float));
      std::memcpy(out + half, values + kGroup / 2, (m - half) * sizeof(float));
    }
  }

 private:
  static constexpr bool kTable = kBits == 4 && kLanes == 16;

  HWY_INLINE VF bytes(std::size_t at) const {
    const auto q = hn::LoadU(DI8(), reinterpret_cast<const std::int8_t*>(payload_ + at));
    return hn::Mul(hn::ConvertTo(DF(), hn::PromoteTo(DI(), q)), scale_);
  }
  HWY_INLINE VU load_packed(std::size_t at) const {
    return hn::PromoteTo(
        DU(), hn::LoadU(DU8(), reinterpret_cast<const std::uint8_t*>(payload_ + at)));
  }
  HWY_INLINE VF low_nibbles(VU packed) const {
    if constexpr (kTable) {
      return lookup(hn::And(packed, hn::Set(DU(), 15)));
    } else {
      return signed_nibble(hn::ShiftLeft<28>(packed));
    }
  }
  HWY_INLINE VF high_nibbles(VU packed) const {
    if constexpr (kTable) {
      return lookup(hn::ShiftRight<4>(packed));
    } else {
      return signed_nibble(hn::ShiftLeft<24>(packed));
    }
  }
  HWY_INLINE VF lookup(VU index) const {
    return hn::TableLookupLanes(scale_, hn::IndicesFromVec(DF(), index));
  }
  HWY_INLINE VF signed_nibble(VU top_bits) const {
    const VI q = hn::ShiftRight<28>(hn::BitCast(DI(), top_bits));
    return hn::Mul(hn::ConvertTo(DF(), q), scale_);
  }

  const std::byte* payload_;
  VF scale_;  ///< Or the table of all values.
};

/// The same block of several wires.
struct BlockSources {
  BlockSources(const IntBlockFormat& f, WireList list, std::uint64_t n)
      : wires(list), scale_bytes(f.blocks(n) * f.kScaleBytes), block_bytes(f.packed(f.block)) {}

  template <int kBits>
  HWY_INLINE Decoder<kBits> decoder(std::size_t source, std::uint64_t block) const {
    const std::byte* wire = wires[source].data();
    return {wire + block * IntBlockFormat::kScaleBytes,
            wire + scale_bytes + block * block_bytes};
  }

  WireList wires;
  std::uint64_t scale_bytes, block_bytes;
};

/// Sums kVectors vectors in registers over all sources, in their order, and hands them over.
template <int kBits, std::size_t kVectors, class Use>
HWY_INLINE void sum_tile(const BlockSources& s, std::uint64_t block, std::size_t first,
                         const Use& use) {
  VF acc[kVectors];
  s.decoder<kBits>(0, block).template vectors<kVectors>(
      first, [&](std::size_t j, VF v) { acc[j] = v; });
  for (std::size_t w = 1; w < s.wires.size(); ++w) {
    s.decoder<kBits>(w, block).template vectors<kVectors>(
        first, [&](std::size_t j, VF v) { acc[j] = hn::Add(acc[j], v); });
  }
  HWY_UNROLL(8)
  for (std::size_t j = 0; j < kVectors; ++j) use(first + j * kLanes, acc[j]);
}

/// Numbers begin .. end of a block (begin a multiple of kTile; end too, or the block's end):
/// use(offset, vector) for whole groups, some(offset, values, count) for what remains.
template <int kBits, class Use, class Some>
HWY_INLINE void sum_range(const BlockSources& s, std::uint64_t block, std::size_t begin,
                          std::size_t end, const Use& use, const Some& some) {
  std::size_t i = begin;
  for (; i + kTile <= end; i += kTile) sum_tile<kBits, 8>(s, block, i, use);
  for (; i + kGroup <= end; i += kGroup) sum_tile<kBits, kGroupVectors>(s, block, i, use);
  if (i == end) return;
  float sum[kGroup], value[kGroup];
  s.decoder<kBits>(0, block).some(i, end - i, sum);
  for (std::size_t w = 1; w < s.wires.size(); ++w) {
    s.decoder<kBits>(w, block).some(i, end - i, value);
    for (std::size_t j = 0; j < end - i; ++j) sum[j] += value[j];
  }
  some(i, sum, end - i);
}

#endif  // ZEROPP_SIMD
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_INT_BLOCK_DECODE_INL_H_
