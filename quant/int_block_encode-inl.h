// Encoding one integer block. See
// int_block.h for the bytes. Included once per instruction set.

#if defined(ZEROPP_QUANT_INT_BLOCK_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_INT_BLOCK_ENCODE_INL_H_
#undef ZEROPP_QUANT_INT_BLOCK_ENCODE_INL_H_
#else
#define ZEROPP_QUANT_INT_BLOCK_ENCODE_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>

#include "quant/int_block.h"
#include "quant/philox-inl.h"
#include "quant/range-inl.h"
#include "quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

/// What becomes of x * mul: nearest even (kClip: not above max_q) or stochastic.
enum class Mode { kNearest, kClip, kStochastic };

/// Everything that is the same for all blocks of a span.
struct Encoder {
  Encoder(const IntBlockFormat& format, const RoundingNoise* random)
      : f(format),
        noise(random),
        divisor(format.divisor()),
        top(hn::Set(DF(), static_cast<float>(format.max_q()))),
        bottom(hn::Set(DF(), -format.divisor())) {}
  const IntBlockFormat& f;
  const RoundingNoise* noise;
  float divisor;
  VF top, bottom;
};

// ---- Rounding, to nearest even. -------------------------------------------------------------

/// The low byte is q in two's complement.
HWY_INLINE VU integer_bits(VF q) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return VU{_mm512_cvtps_epi32(q.raw)};  // hn::NearestInt also saturates, which costs.
#else
  // 1.5 * 2^23 + q has q in its mantissa, and the addition rounds.
  return hn::BitCast(DU(), hn::Add(q, hn::Set(DF(), 0x1.8p23F)));
#endif
}

template <Mode kMode>
HWY_INLINE VU quantize(const Encoder& e, VF x, VF mul, const std::uint32_t* words,
                       std::size_t at) {
  const VF v = hn::Mul(x, mul);
  if constexpr (kMode == Mode::kNearest) {
    return integer_bits(v);  // |v| <= max_q + one rounding: nothing to clip.
  } else if constexpr (kMode == Mode::kClip) {
    return integer_bits(hn::Min(v, e.top));
  } else {
    const VF below = hn::Floor(v);
    const VF up =
        hn::IfThenElseZero(hn::Lt(uniform(words + at), hn::Sub(v, below)), hn::Set(DF(), 1.0F));
    return integer_bits(hn::Min(hn::Max(hn::Add(below, up), e.bottom), e.top));
  }
}

// ---- Packing low bytes and nibbles. --------------------------------------------------------

HWY_INLINE VU nibble_pair(VU low, VU high) {
  return hn::OrAnd(hn::ShiftLeft<4>(high), low, hn::Set(DU(), 15));
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

/// Low bytes of four vectors of integers -128 .. 127, in the order of their 128-bit blocks.
HWY_INLINE __m512i narrow_blocks(VU a, VU b, VU c, VU d) {
  return _mm512_packs_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, d.raw));
}
/// The same bytes in the order of the vectors.
HWY_INLINE void store_narrow(__m512i blocks, std::byte* out) {
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, blocks));
}

/// One tile of eight vectors: fewer instructions than vectors two at a time.
template <int kBits>
HWY_INLINE void pack_tile(const VU (&q)[8], std::byte* out) {
  if constexpr (kBits == 8) {
    store_narrow(narrow_blocks(q[0], q[1], q[2], q[3]), out);
    store_narrow(narrow_blocks(q[4], q[5], q[6], q[7]), out + 64);
  } else {
    const __m512i low = narrow_blocks(q[0], q[2], q[4], q[6]);
    const __m512i high = narrow_blocks(q[1], q[3], q[5], q[7]);
    const __m512i mask = _mm512_set1_epi8(15);
    // mask ? low : high << 4. What the shift takes from the byte below is masked away.
    store_narrow(_mm512_ternarylogic_epi64(mask, low, _mm512_slli_epi16(high, 4), 0xCA), out);
  }
}

#else

/// One tile of eight vectors.
template <int kBits>
HWY_INLINE void pack_tile(const VU (&q)[8], std::byte* out) {
  if constexpr (kBits == 8) {
    for (std::size_t j = 0; j < 8; j += 2) store_bytes(q[j], q[j + 1], out + j * kLanes);
  } else {
    constexpr std::size_t kHalf = kGroupVectors / 2;
    const auto pair = [&](std::size_t k) {
      const std::size_t low = k / kHalf * kGroupVectors + k % kHalf;
      return nibble_pair(q[low], q[low + kHalf]);
    };
    store_bytes(pair(0), pair(1), out);
    store_bytes(pair(2), pair(3), out + 2 * kLanes);
  }
}

#endif

/// One group of 32 numbers.
template <int kBits>
HWY_INLINE void pack_group(const VU (&q)[kGroupVectors], std::byte* out) {
  if constexpr (kBits == 8) {
    for (std::size_t j = 0; j < kGroupVectors; ++j) store_bytes(q[j], out + j * kLanes);
  } else {
    constexpr std::size_t kHalf = kGroupVectors / 2;
    for (std::size_t j = 0; j < kHalf; ++j) {
      store_bytes(nibble_pair(q[j], q[j + kHalf]), out + j * kLanes);
    }
  }
}

/// A group of m < 32 numbers, as bits in an array.
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

// ---- Blocks. -------------------------------------------------------------------------------

template <Dtype kType, int kBits, Mode kMode>
HWY_INLINE void encode_tile(const Encoder& e, VF mul, const std::byte* x,
                            const std::uint32_t* words, std::size_t at, std::byte* out) {
  VU q[8];
  HWY_UNROLL(8)
  for (std::size_t j = 0; j < 8; ++j) {
    const VF v = load<kType>(x + j * kLanes * size_of(kType));
    q[j] = quantize<kMode>(e, v, mul, words, at + j * kLanes);
  }
  pack_tile<kBits>(q, out);
}

/// m numbers from a group's start; words[i] is the noise of number i. What lies `ahead` bytes
/// on is fetched meanwhile: the next search for a maximum would wait for it.
template <Dtype kType, int kBits, Mode kMode>
HWY_INLINE void encode_run(const Encoder& e, VF mul, const std::byte* x, std::size_t m,
                           std::size_t ahead, const std::uint32_t* words, std::byte* out) {
  constexpr std::size_t kSize = size_of(kType);
  const auto at = [&](std::size_t i) {
    return quantize<kMode>(e, load<kType>(x + i * kSize), mul, words, i);
  };
  std::size_t i = 0;
  for (; i + kTile <= m; i += kTile) {
    for (std::size_t line = 0; line < kTile * kSize; line += 64) {
      hwy::Prefetch(x + i * kSize + ahead + line);
    }
    encode_tile<kType, kBits, kMode>(e, mul, x + i * kSize, words, i, out + i * kBits / 8);
  }
  for (; i + kGroup <= m; i += kGroup) {
    VU q[kGroupVectors];
    HWY_UNROLL(8)
    for (std::size_t j = 0; j < kGroupVectors; ++j) q[j] = at(i + j * kLanes);
    pack_group<kBits>(q, out + i * kBits / 8);
  }
  if (i == m) return;
  alignas(64) std::byte padded[kGroup * kSize] = {};
  alignas(64) std::uint32_t bits[kGroup];
  std::memcpy(padded, x + i * kSize, (m - i) * kSize);
  for (std::size_t j = 0; j < kGroup; j += kLanes) {
    const VF v = load<kType>(padded + j * kSize);
    hn::Store(quantize<kMode>(e, v, mul, words, i + j), DU(), bits + j);
  }
  pack_some<kBits>(bits, m - i, out + i * kBits / 8);
}

template <Dtype kType, int kBits>
HWY_INLINE void encode_stochastic(const Encoder& e, VF mul, const std::byte* x, std::size_t m,
                                  std::uint64_t first, std::byte* out) {
  constexpr std::size_t kSegment = 512;
  alignas(64) std::uint32_t words[kNoiseSize<kSegment>];
  for (std::size_t i = 0; i < m; i += kSegment) {
    const std::size_t count = std::min(kSegment, m - i);
    const std::uint32_t* noise = fill_noise(*e.noise, first + i, count, words);
    encode_run<kType, kBits, Mode::kStochastic>(e, mul, x + i * size_of(kType), count, 0, noise,
                                                out + i * kBits / 8);
  }
}

/// Up to kLanes consecutive blocks of m numbers. Scales are computed side by side, or every
/// block would wait for its two divisions.
struct FewBlocks {
  std::size_t count = 0, m = 0, first = 0;  ///< `first` is x[0]'s number in the span.
  const std::byte* x = nullptr;
  std::byte *scales = nullptr, *payload = nullptr;
  /// None is zero, tiny, near overflow, infinite or NaN: those go to the reference.
  bool all_ordinary = true;
  alignas(64) float maxima[kLanes];
  alignas(64) float factors[kLanes];
};

HWY_INLINE bool is_ordinary(float a) { return a >= 0x1p-100F && a < 0x1p120F; }

/// Scales and factors of `count` blocks from the largest magnitudes of each, a vector a block.
HWY_INLINE void find_scales(const Encoder& e, VI (&lanes)[kLanes], FewBlocks& few) {
  const DF df;
  for (std::size_t b = few.count; b < kLanes; ++b) lanes[b] = magnitude(hn::Set(df, 1.0F));
  const VF a = max_of_each(lanes), divisor = hn::Set(df, e.divisor);
  hn::Store(a, df, few.maxima);
  hn::Store(hn::Div(divisor, a), df, few.factors);
  const VF scale = hn::Div(a, divisor);
  if (few.count == kLanes) {
    store<Dtype::kF32>(scale, few.scales);
  } else {
    store_some<Dtype::kF32>(scale, few.scales, few.count);
  }
  few.all_ordinary = hn::AllTrue(
      df, hn::And(hn::Ge(a, hn::Set(df, 0x1p-100F)), hn::Lt(a, hn::Set(df, 0x1p120F))));
}

template <Dtype kType>
HWY_INLINE void find_scales(const Encoder& e, FewBlocks& few) {
  VI lanes[kLanes];
  const std::size_t block_bytes = few.m * size_of(kType);
  const auto find = [&](auto size) {
    for (std::size_t b = 0; b < few.count; ++b) {
      lanes[b] = absmax_lanes<kType>(few.x + b * block_bytes, size);
    }
  };
  if (few.m == kTile) {
    find(std::integral_constant<std::size_t, kTile>());
  } else {
    find(few.m);
  }
  find_scales(e, lanes, few);
}

/// A block whose largest magnitude is `a`, not ordinary. Tiny ones, as of denormals, are
/// brought into range piece by piece and then rounded as any other; zeros, NaN and what is near
/// overflow are the reference's.
template <Dtype kType, int kBits, Mode kMode>
HWY_NOINLINE void encode_rare(const Encoder& e, float a, const std::byte* x, std::size_t m,
                              std::uint64_t first, std::byte* scale, std::byte* payload) {
  if (a == 0 || !(a < 0x1p-100F)) {
    return reference::encode_block(e.f, a, {x, kType, m}, first, e.noise, scale, payload);
  }
  const float s = reference::tiny_scale(a, e.divisor);
  std::memcpy(scale, &s, sizeof s);
  const VF pre = hn::Set(DF(), 0x1p100F), div = hn::Set(DF(), s * 0x1p100F);
  constexpr std::size_t kPiece = 512;
  alignas(64) std::byte v[kPiece * sizeof(float)];
  for (std::size_t i = 0; i < m; i += kPiece) {
    const std::size_t count = std::min(kPiece, m - i);
    for (std::size_t j = 0; j < count; j += kLanes) {
      const std::byte* from = x + (i + j) * size_of(kType);
      const VF some =
          count - j < kLanes ? load_some<kType>(from, count - j) : load<kType>(from);
      store<Dtype::kF32>(hn::Div(hn::Mul(some, pre), div), v + j * sizeof(float));
    }
    const VF one = hn::Set(DF(), 1.0F);
    std::byte* out = payload + i * kBits / 8;
    if constexpr (kMode == Mode::kStochastic) {
      encode_stochastic<Dtype::kF32, kBits>(e, one, v, count, first + i, out);
    } else {
      encode_run<Dtype::kF32, kBits, kMode>(e, one, v, count, 0, nullptr, out);
    }
  }
}

template <Dtype kType, int kBits, Mode kMode>
HWY_INLINE void encode_few(const Encoder& e, const FewBlocks& few, std::size_t ahead) {
  const DF df;
  const std::size_t m = few.m, block_bytes = m * size_of(kType);
  if (kMode != Mode::kStochastic && m == kTile && HWY_LIKELY(few.all_ordinary)) {
    for (std::size_t b = 0; b < few.count; ++b) {
      encode_tile<kType, kBits, kMode>(e, hn::Set(df, few.factors[b]), few.x + b * block_bytes,
                                       nullptr, 0, few.payload + b * (kTile * kBits / 8));
    }
    return;
  }
  for (std::size_t b = 0; b < few.count; ++b) {
    const std::byte* in = few.x + b * block_bytes;
    std::byte* out = few.payload + b * e.f.packed(m);
    if (HWY_UNLIKELY(!few.all_ordinary) && !is_ordinary(few.maxima[b])) {
      encode_rare<kType, kBits, kMode>(e, few.maxima[b], in, m, few.first + b * m,
                                       few.scales + b * IntBlockFormat::kScaleBytes, out);
      continue;
    }
    const VF mul = hn::Set(df, few.factors[b]);
    if constexpr (kMode == Mode::kStochastic) {
      encode_stochastic<kType, kBits>(e, mul, in, m, few.first + b * m, out);
    } else {
      encode_run<kType, kBits, kMode>(e, mul, in, m, ahead, nullptr, out);
    }
  }
}

/// One block, whose scale is computed while the end of the one before is encoded.
struct LargeBlock {
  const std::byte* x = nullptr;
  std::size_t m = 0;
  float max = 0;
  VF factor;
};

template <Dtype kType>
HWY_INLINE LargeBlock find_scale(const Encoder& e, const std::byte* x, std::size_t m,
                                 std::byte* scale) {
  const DF df;
  LargeBlock found{x, m, 0, hn::Zero(df)};
  const VF a = hn::BitCast(df, hn::MaxOfLanes(DI(), absmax_lanes<kType>(x, m)));
  const VF divisor = hn::Set(df, e.divisor);
  found.max = hn::GetLane(a);
  found.factor = hn::Div(divisor, a);
  const float s = hn::GetLane(hn::Div(a, divisor));
  std::memcpy(scale, &s, sizeof s);
  return found;
}

/// As encode_all, for blocks of which a few fill the nearest cache.
template <Dtype kType, int kBits, Mode kMode>
HWY_INLINE void encode_large(const Encoder& e, const std::byte* x, std::size_t n,
                             std::uint64_t first, std::byte* scales, std::byte* payload) {
  constexpr std::size_t kSize = size_of(kType);
  const std::size_t block = e.f.block, ahead = 2 * block * kSize;
  LargeBlock next = find_scale<kType>(e, x, std::min(block, n), scales);
  for (std::size_t at = 0; at < n; at += block) {
    const LargeBlock now = next;
    std::byte* scale = scales;
    scales += IntBlockFormat::kScaleBytes;
    const auto find_next = [&] {
      const std::size_t begin = at + block;
      if (begin >= n) return;
      next = find_scale<kType>(e, x + begin * kSize, std::min(block, n - begin), scales);
    };
    if (HWY_UNLIKELY(!is_ordinary(now.max))) {
      encode_rare<kType, kBits, kMode>(e, now.max, now.x, now.m, first + at, scale, payload);
      find_next();
    } else if constexpr (kMode == Mode::kStochastic) {
      encode_stochastic<kType, kBits>(e, now.factor, now.x, now.m, first + at, payload);
      find_next();
    } else {
      find_next();
      encode_run<kType, kBits, kMode>(e, now.factor, now.x, now.m, ahead, nullptr, payload);
    }
    payload += e.f.packed(now.m);
  }
}

/// n numbers from a block's start, which is number `first` of the span; the last block may be
/// short. The next blocks' scales are found before these are encoded: encoding hides the wait.
template <Dtype kType, int kBits, Mode kMode>
HWY_INLINE void encode_all(const Encoder& e, const std::byte* x, std::size_t n,
                           std::uint64_t first, std::byte* scales, std::byte* payload) {
  constexpr std::size_t kAtOnce = std::size_t{8} << 10;  // Bytes read twice: a part of L1.
  const std::size_t block = e.f.block;
  if (block > kAtOnce / (2 * size_of(kType))) {
    return encode_large<kType, kBits, kMode>(e, x, n, first, scales, payload);
  }
  const std::size_t most = std::min(kAtOnce / (block * size_of(kType)), kLanes);
  std::size_t found = 0;
  const auto find_next = [&](FewBlocks& few) {
    const std::size_t left = n - found;
    few.m = std::min(block, left);
    few.count = left == 0 ? 0 : std::min(most, left / few.m);
    if (few.count == 0) return;
    few.first = first + found;
    few.x = x + found * size_of(kType);
    few.scales = scales;
    few.payload = payload;
    find_scales<kType>(e, few);
    scales += few.count * IntBlockFormat::kScaleBytes;
    payload += few.count * e.f.packed(few.m);
    found += few.count * few.m;
  };
  FewBlocks few[2];
  find_next(few[0]);
  for (std::size_t k = 0; few[k].count != 0; k ^= 1) {
    find_next(few[k ^ 1]);
    encode_few<kType, kBits, kMode>(e, few[k], 2 * most * block * size_of(kType));
  }
}

/// Calls use with the format's Mode as a constant.
template <class Use>
HWY_INLINE void with_mode(const IntBlockFormat& f, const Use& use) {
  if (f.stochastic()) {
    use(std::integral_constant<Mode, Mode::kStochastic>());
  } else if (f.scheme == BlockScheme::kDeepspeed) {
    use(std::integral_constant<Mode, Mode::kClip>());
  } else {
    use(std::integral_constant<Mode, Mode::kNearest>());
  }
}

#endif  // ZEROPP_SIMD
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_INT_BLOCK_ENCODE_INL_H_
