// Encoding one block, decoding one tile: the pieces of the integer block kernels. See
// int_block.h for the bytes. Included once per instruction set.

#if defined(ZEROPP_QUANT_INT_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_INT_BLOCK_INL_H_
#undef ZEROPP_QUANT_INT_BLOCK_INL_H_
#else
#define ZEROPP_QUANT_INT_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "quant/int_block.h"
#include "quant/philox-inl.h"
#include "quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

constexpr std::size_t kGroup = IntBlockFormat::kGroup;
constexpr std::size_t kGroupVectors = kGroup / kLanes;
static_assert(kGroup % (2 * kLanes) == 0);

using DU8 = hn::Rebind<std::uint8_t, DF>;
using DI8 = hn::Rebind<std::int8_t, DF>;

// ---- Encoding -----------------------------------------------------------------------------

HWY_INLINE float max_of_lanes(VI v) {
  return hn::GetLane(hn::BitCast(DF(), hn::MaxOfLanes(DI(), v)));
}

/// max |x|; a NaN wins, since magnitudes are compared as integers.
template <Dtype kType>
HWY_INLINE float absmax(const std::byte* x, std::size_t m) {
  constexpr std::size_t kSize = size_of(kType);
  const DI di;
  const auto bits = [&](std::size_t i) {
    return hn::BitCast(di, abs_bits(load<kType>(x + i * kSize)));
  };
  VI a = hn::Zero(di), b = a, c = a, d = a;
  std::size_t i = 0;
  for (; i + 4 * kLanes <= m; i += 4 * kLanes) {
    a = hn::Max(a, bits(i));
    b = hn::Max(b, bits(i + kLanes));
    c = hn::Max(c, bits(i + 2 * kLanes));
    d = hn::Max(d, bits(i + 3 * kLanes));
  }
  for (; i + kLanes <= m; i += kLanes) a = hn::Max(a, bits(i));
  if (i < m) {
    b = hn::Max(b, hn::BitCast(di, abs_bits(load_some<kType>(x + i * kSize, m - i))));
  }
  return max_of_lanes(hn::Max(hn::Max(a, b), hn::Max(c, d)));
}

/// The numbers that one block's elements are quantized with.
struct Rounding {
  VF mul, top, bottom;
};

/// v -> bits whose low byte is q in two's complement: 1.5 * 2^23 + q has q in its mantissa, and
/// the addition rounds to nearest even.
HWY_INLINE VU integer_bits(VF q) {
  return hn::BitCast(DU(), hn::Add(q, hn::Set(DF(), 0x1.8p23F)));
}

HWY_INLINE VU quantize_nearest(VF x, const Rounding& r) {
  return integer_bits(hn::Min(hn::Mul(x, r.mul), r.top));
}

HWY_INLINE VU quantize_stochastic(VF x, const Rounding& r, const std::uint32_t* words) {
  const VF v = hn::Mul(x, r.mul);
  const VF below = hn::Floor(v);
  const VU word = hn::ShiftRight<8>(hn::LoadU(DU(), words));
  const VF u = hn::Mul(hn::ConvertTo(DF(), hn::BitCast(DI(), word)), hn::Set(DF(), 0x1p-24F));
  const VF up = hn::IfThenElseZero(hn::Lt(u, hn::Sub(v, below)), hn::Set(DF(), 1.0F));
  return integer_bits(hn::Min(hn::Max(hn::Add(below, up), r.bottom), r.top));
}

HWY_INLINE void store_bytes(VU low_bytes, std::byte* p) {
  hn::StoreU(hn::TruncateTo(DU8(), low_bytes), DU8(), reinterpret_cast<std::uint8_t*>(p));
}

/// One group of 32 numbers; q(j) gives the bits of vector j.
template <int kBits, class Q>
HWY_INLINE void pack_group(const Q& q, std::byte* out) {
  if constexpr (kBits == 8) {
    for (std::size_t j = 0; j < kGroupVectors; ++j) store_bytes(q(j), out + j * kLanes);
  } else {
    const VU low_mask = hn::Set(DU(), 15);
    for (std::size_t j = 0; j < kGroupVectors / 2; ++j) {
      const VU low = hn::And(q(j), low_mask);
      const VU high = hn::ShiftLeft<4>(q(j + kGroupVectors / 2));
      store_bytes(hn::Or(low, high), out + j * kLanes);
    }
  }
}

/// A group of m < 32 numbers, already as bits in a zero-filled array.
template <int kBits>
HWY_INLINE void pack_some(const std::uint32_t* q, std::size_t m, std::byte* out) {
  if constexpr (kBits == 8) {
    for (std::size_t i = 0; i < m; ++i) out[i] = static_cast<std::byte>(q[i]);
  } else {
    const std::size_t half = (m + 1) / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const std::uint32_t high = half + i < m ? q[half + i] : 0;
      out[i] = static_cast<std::byte>((q[i] & 15) | (high << 4));
    }
  }
}

/// Numbers i .. m of a block, q(vector, offset in the block).
template <Dtype kType, int kBits, class Q>
HWY_INLINE void encode_groups(const std::byte* x, std::size_t m, std::byte* out, const Q& q) {
  constexpr std::size_t kSize = size_of(kType);
  std::size_t i = 0;
  for (; i + kGroup <= m; i += kGroup) {
    pack_group<kBits>(
        [&](std::size_t j) {
          const std::size_t at = i + j * kLanes;
          return q(load<kType>(x + at * kSize), at);
        },
        out + i * kBits / 8);
  }
  if (i < m) {
    alignas(64) std::byte padded[kGroup * kSize] = {};
    alignas(64) std::uint32_t bits[kGroup];
    std::memcpy(padded, x + i * kSize, (m - i) * kSize);
    for (std::size_t j = 0; j < kGroup; j += kLanes) {
      hn::Store(q(load<kType>(padded + j * kSize), i + j), DU(), bits + j);
    }
    pack_some<kBits>(bits, m - i, out + i * kBits / 8);
  }
}

template <Dtype kType, int kBits>
HWY_INLINE void encode_stochastic(const std::byte* x, std::size_t m, std::uint64_t first,
                                  const Philox& noise, const Rounding& r, std::byte* out) {
  constexpr std::size_t kSegment = 512;
  alignas(64) std::uint32_t words[kNoiseSize<kSegment>];
  for (std::size_t i = 0; i < m; i += kSegment) {
    const std::size_t count = std::min(kSegment, m - i);
    const std::uint32_t* at = fill_noise(noise, first + i, count, words);
    encode_groups<kType, kBits>(
        x + i * size_of(kType), count, out + i * kBits / 8,
        [&](VF v, std::size_t j) { return quantize_stochastic(v, r, at + j); });
  }
}

/// Numbers first .. first + m of the span are one block.
template <Dtype kType, int kBits>
HWY_INLINE void encode_block(const IntBlockFormat& f, const std::byte* x, std::size_t m,
                             std::uint64_t first, const Philox* noise, std::byte* scale,
                             std::byte* payload) {
  const float a = absmax<kType>(x, m);
  if (HWY_UNLIKELY(!(a >= 0x1p-100F && a < 0x1p120F))) {
    // Zero, tiny, near overflow, infinite or NaN.
    const ConstView block{x, kType, m};
    return reference::encode_block(f, a, block, first, noise, scale, payload);
  }
  const float d = f.divisor();
  const float wire_scale = a / d;
  std::memcpy(scale, &wire_scale, sizeof wire_scale);
  const Rounding r{hn::Set(DF(), d / a), hn::Set(DF(), static_cast<float>(f.max_q())),
                   hn::Set(DF(), -d)};
  if (noise != nullptr) {
    encode_stochastic<kType, kBits>(x, m, first, *noise, r, payload);
  } else {
    encode_groups<kType, kBits>(x, m, payload,
                                [&](VF v, std::size_t) { return quantize_nearest(v, r); });
  }
}

// ---- Decoding -----------------------------------------------------------------------------

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

constexpr std::size_t kTile = 8 * kLanes;

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

#endif  // ZEROPP_QUANT_INT_BLOCK_INL_H_
