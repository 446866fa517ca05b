// Integers in bit planes, once per instruction set. See int_plane_codec.h for the bytes.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/int_plane_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <algorithm>
#include <cfloat>
#include <cstring>

#include "quant/int_plane_codec.h"
#include "quant/int_plane_meta-inl.h"
#include "quant/philox-inl.h"
#include "quant/planes-inl.h"
#include "quant/range-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

IntRange IntRangeOf(const float* x, std::size_t n) {
  const MinMaxLanes range = min_max_lanes(x, n);
  return {hn::GetLane(hn::MinOfLanes(DF(), range.min)),
          hn::GetLane(hn::MaxOfLanes(DF(), range.max)), range.finite};
}

/// Codes of numbers under known factors.
class Quantizer {
 public:
  Quantizer(const IntPlaneFormat& f, const IntFactors& by)
      : pre_(hn::Set(DF(), by.pre)),
        offset_(hn::Set(DF(), by.offset)),
        mul_(hn::Set(DF(), by.mul)),
        low_(hn::Set(DF(), by.low)),
        high_(hn::Set(DF(), by.high)),
        zero_(hn::Set(DU(), 0x4B400000U + static_cast<std::uint32_t>(f.lowest()))) {}

  HWY_INLINE VU nearest(VF x) const { return code(hn::Min(hn::Max(scaled(x), low_), high_)); }
  HWY_INLINE VU stochastic(VF x, const std::uint32_t* words) const {
    const VF v = scaled(x), below = hn::Floor(v);
    const VF up =
        hn::IfThenElseZero(hn::Lt(uniform(words), hn::Sub(v, below)), hn::Set(DF(), 1.0F));
    return code(hn::Min(hn::Max(hn::Add(below, up), low_), high_));
  }

 private:
  HWY_INLINE VF scaled(VF x) const { return hn::Mul(hn::Sub(hn::Mul(x, pre_), offset_), mul_); }
  /// 1.5 * 2^23 + q has q in its mantissa, and the addition rounds to nearest even.
  HWY_INLINE VU code(VF q) const {
    return hn::Sub(hn::BitCast(DU(), hn::Add(q, hn::Set(DF(), 0x1.8p23F))), zero_);
  }
  VF pre_, offset_, mul_, low_, high_;
  VU zero_;
};

HWY_INLINE void quantize(const IntPlaneFormat& f, const IntFactors& by, const float* x,
                         std::size_t m, std::uint64_t first, const RoundingNoise* noise,
                         std::uint8_t* codes) {
  if (by.zero) {
    std::memset(codes, -f.lowest(), m);
    return;
  }
  const Quantizer quantizer(f, by);
  if (!f.stochastic()) {
    code_run(x, m, codes, [&](VF v, std::size_t) { return quantizer.nearest(v); });
    return;
  }
  constexpr std::size_t kSegment = 512;
  alignas(64) std::uint32_t buffer[kNoiseSize<kSegment>];
  for (std::size_t at = 0; at < m; at += kSegment) {
    const std::size_t count = std::min(kSegment, m - at);
    const std::uint32_t* words = fill_noise(*noise, first + at, count, buffer);
    code_run(x + at, count, codes + at,
             [&](VF v, std::size_t i) { return quantizer.stochastic(v, words + i); });
  }
}

void EncodeIntRun(const IntPlaneFormat& f, const IntFactors& by, const float* x, std::size_t n,
                  std::uint64_t first, const RoundingNoise* noise, std::byte* payload) {
  alignas(64) std::uint8_t codes[kCodeRoom];
  quantize(f, by, x, n, first, noise, codes);
  bit_planes::with_bits(f.bits, [&](auto bits) { pack_codes<bits()>(codes, n, n, payload); });
}

void EncodeIntBlocks(const IntPlaneFormat& f, const float* x, std::size_t n,
                     std::uint64_t first, const RoundingNoise* noise, std::byte* meta,
                     std::byte* payload) {
  alignas(64) std::uint8_t codes[kCodeRoom];
  ManyIntBlocks many(f);
  for (std::size_t at = 0; at < n;) {
    const std::size_t count = many.find(x + at, n - at);
    for (std::size_t b = 0; b < count; ++b, at += f.block) {
      const double shift =
          f.rounding == Rounding::kShift ? noise->shift((first + at) / f.block) : 0;
      const IntFactors by = many.write(b, shift, meta);
      quantize(f, by, x + at, std::min(f.block, n - at), first + at, noise, codes + at);
      meta += many.bytes();
    }
  }
  bit_planes::with_bits(f.bits,
                        [&](auto bits) { pack_codes<bits()>(codes, f.block, n, payload); });
}

// ---- Decoding. -----------------------------------------------------------------------------

/// (min + q * step) * post; kPlain: post is 1 and nothing overflows.
template <bool kPlain>
class IntValues {
 public:
  HWY_INLINE IntValues(int lowest, const IntMeta& m)
      : lowest_(hn::Set(DF(), static_cast<float>(lowest))),
        step_(hn::Set(DF(), m.step)),
        min_(hn::Set(DF(), m.min)),
        post_(hn::Set(DF(), m.post)) {}
  HWY_INLINE VF operator()(VU code) const {
    const VF q = hn::Add(hn::ConvertTo(DF(), hn::BitCast(DI(), code)), lowest_);
    VF y = hn::Add(min_, hn::Mul(q, step_));
    if constexpr (!kPlain) {
      const VF top = hn::Set(DF(), FLT_MAX), bottom = hn::Neg(top);
      y = hn::Mul(y, post_);
      y = hn::IfThenElse(hn::Gt(y, top), top, y);
      y = hn::IfThenElse(hn::Lt(y, bottom), bottom, y);
    }
    return canonical(y);
  }

 private:
  VF lowest_, step_, min_, post_;
};

template <bool kAdd>
HWY_INLINE void decode_blocks(const IntPlaneFormat& f, const std::byte* meta,
                              const std::uint8_t* codes, std::size_t n, float* out) {
  FewIntMetas few(f);
  for (std::size_t at = 0; at < n;) {
    const std::size_t count =
        f.block >= n ? 1 : std::min(kLanes, (n - at + f.block - 1) / f.block);
    few.read(meta, count);
    meta += count * few.bytes();
    for (std::size_t b = 0; b < count; ++b, at += f.block) {
      const std::size_t m = std::min(f.block, n - at);
      if (HWY_LIKELY(few.plain(b))) {
        value_run<kAdd>(codes + at, m, out + at, IntValues<true>(f.lowest(), few[b]));
      } else {
        value_run<kAdd>(codes + at, m, out + at, IntValues<false>(f.lowest(), few[b]));
      }
    }
  }
}

void DecodeIntBlocks(const IntPlaneFormat& f, const std::byte* meta, const std::byte* payload,
                     std::size_t n, bool add, float* out) {
  alignas(64) std::uint8_t codes[kCodeRoom];
  bit_planes::with_bits(f.bits,
                        [&](auto bits) { unpack_codes<bits()>(payload, f.block, n, codes); });
  add ? decode_blocks<true>(f, meta, codes, n, out)
      : decode_blocks<false>(f, meta, codes, n, out);
}

#else

IntRange IntRangeOf(const float* x, std::size_t n) { return reference::int_range(x, n); }
void EncodeIntRun(const IntPlaneFormat& f, const IntFactors& by, const float* x, std::size_t n,
                  std::uint64_t first, const RoundingNoise* noise, std::byte* payload) {
  reference::encode_int_run(f, by, x, n, first, noise, payload);
}
void EncodeIntBlocks(const IntPlaneFormat& f, const float* x, std::size_t n,
                     std::uint64_t first, const RoundingNoise* noise, std::byte* meta,
                     std::byte* payload) {
  reference::encode_int_blocks(f, x, n, first, noise, meta, payload);
}
void DecodeIntBlocks(const IntPlaneFormat& f, const std::byte* meta, const std::byte* payload,
                     std::size_t n, bool add, float* out) {
  reference::decode_int_blocks(f, meta, payload, n, add, out);
}

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(IntRangeOf);
HWY_EXPORT(EncodeIntRun);
HWY_EXPORT(EncodeIntBlocks);
HWY_EXPORT(DecodeIntBlocks);

IntRange int_range(const float* x, std::size_t n) {
  if (scalar_forced()) return reference::int_range(x, n);
  return HWY_DYNAMIC_DISPATCH(IntRangeOf)(x, n);
}

void encode_int_run(const IntPlaneFormat& f, const IntFactors& by, const float* x,
                    std::size_t n, std::uint64_t first, const RoundingNoise* noise,
                    std::byte* payload) {
  if (scalar_forced()) return reference::encode_int_run(f, by, x, n, first, noise, payload);
  HWY_DYNAMIC_DISPATCH(EncodeIntRun)(f, by, x, n, first, noise, payload);
}

void encode_int_blocks(const IntPlaneFormat& f, const float* x, std::size_t n,
                       std::uint64_t first, const RoundingNoise* noise, std::byte* meta,
                       std::byte* payload) {
  if (scalar_forced()) {
    return reference::encode_int_blocks(f, x, n, first, noise, meta, payload);
  }
  HWY_DYNAMIC_DISPATCH(EncodeIntBlocks)(f, x, n, first, noise, meta, payload);
}

void decode_int_blocks(const IntPlaneFormat& f, const std::byte* meta, const std::byte* payload,
                       std::size_t n, bool add, float* out) {
  if (scalar_forced()) return reference::decode_int_blocks(f, meta, payload, n, add, out);
  HWY_DYNAMIC_DISPATCH(DecodeIntBlocks)(f, meta, payload, n, add, out);
}

}  // namespace zeropp::quant
#endif
