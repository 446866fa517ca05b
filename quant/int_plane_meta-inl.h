// Metadata of integer blocks, kLanes blocks side by side: the bytes of int_plane_meta.cc, which
// takes the unusual ones. Included once per instruction set.

#if defined(ZEROPP_QUANT_INT_PLANE_META_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_INT_PLANE_META_INL_H_
#undef ZEROPP_QUANT_INT_PLANE_META_INL_H_
#else
#define ZEROPP_QUANT_INT_PLANE_META_INL_H_
#endif

#include <cfloat>
#include <cmath>
#include <cstring>

#include "quant/int_plane_codec.h"
#include "quant/minifloat-inl.h"
#include "quant/range-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

HWY_INLINE void copy_meta(std::size_t size, const void* from, void* to) {
  if (size == 4) {
    std::memcpy(to, from, 4);
  } else if (size == 2) {
    std::memcpy(to, from, 2);
  } else {
    std::memcpy(to, from, 1);
  }
}

/// Codes of a 16-bit format, or fp32's own bits.
HWY_INLINE VF meta_value(MetaFormat m, VU code) {
  if (m == MetaFormat::kFp32) return hn::BitCast(DF(), code);
  if (m == MetaFormat::kBf16) return hn::BitCast(DF(), hn::ShiftLeft<16>(code));
  if (m == MetaFormat::kFp16) return from_f16(hn::TruncateTo(DU16(), code));
  // 2^(code - 127); 0 is 2^-127, 255 is NaN.
  VU u = hn::ShiftLeft<23>(code);
  u = hn::IfThenElse(hn::Eq(code, set_bits(0)), set_bits(0x00400000), u);
  u = hn::IfThenElse(hn::Eq(code, set_bits(255)), set_bits(0x7FC00000), u);
  return hn::BitCast(DF(), u);
}

/// Nearest code of a magnitude, at most the largest number's.
HWY_INLINE VU nearest_half(MetaFormat m, VF a) {
  const VU16 h = m == MetaFormat::kBf16 ? to_bf16(a) : to_f16(a);
  return hn::Min(hn::PromoteTo(DU(), h), set_bits(m == MetaFormat::kBf16 ? 0x7F7F : 0x7BFF));
}

HWY_INLINE VU one_if(hn::Mask<DF> mask) {
  return hn::IfThenElseZero(hn::RebindMask(DU(), mask), set_bits(1));
}

/// The largest number not above v, with its sign; -0 is 0.
HWY_INLINE VU code_below(MetaFormat m, VF v) {
  const VU bits = hn::BitCast(DU(), v);
  const auto is_zero = hn::RebindMask(DU(), hn::Eq(v, hn::Zero(DF())));
  if (m == MetaFormat::kFp32) return hn::IfThenZeroElse(is_zero, bits);
  const VF a = hn::Abs(v);
  const VU code = nearest_half(m, a);
  const VF back = meta_value(m, code);
  const VU top = set_bits(m == MetaFormat::kBf16 ? 0x7F7F : 0x7BFF);
  const VU down = hn::Sub(code, one_if(hn::Gt(back, a)));
  const VU up = hn::Min(hn::Add(code, one_if(hn::Lt(back, a))), top);
  const auto negative = hn::RebindMask(DU(), hn::Lt(v, hn::Zero(DF())));
  const VU either = hn::IfThenElse(negative, hn::Or(up, set_bits(0x8000)), down);
  return hn::IfThenZeroElse(is_zero, either);
}

/// The least number that is not below v > 0, which is a normal fp32 number or close to one.
HWY_INLINE VU code_above(MetaFormat m, Doubles v) {
  const VF nearest = narrow(v);
  const Doubles back = widen(nearest);
  const VD one = hn::Set(DD(), 1), none = hn::Zero(DD());
  const VF below = narrow({hn::IfThenElse(hn::Lt(back.low, v.low), one, none),
                           hn::IfThenElse(hn::Lt(back.high, v.high), one, none)});
  const VU bits =
      hn::Add(hn::BitCast(DU(), nearest), hn::BitCast(DU(), hn::ConvertTo(DI(), below)));
  if (m == MetaFormat::kFp32) return bits;
  if (m == MetaFormat::kE8M0) {
    // A power of two, or the next one.
    return hn::ShiftRight<23>(hn::Add(bits, set_bits(0x007FFFFF)));
  }
  const VF a = hn::BitCast(DF(), bits);
  const VU code = nearest_half(m, a);
  return hn::Min(hn::Add(code, one_if(hn::Lt(meta_value(m, code), a))),
                 set_bits(m == MetaFormat::kBf16 ? 0x7F7F : 0x7BFF));
}

/// Encodes the metadata of blocks. Each step runs over all of them: one alone would wait for
/// every result.
class ManyIntBlocks {
 public:
  explicit ManyIntBlocks(const IntPlaneFormat& f)
      : f_(f), step_size_(meta_size(f.scale)), min_size_(meta_size(min_format(f.scale))) {}
  std::size_t bytes() const { return step_size_ + (f_.asymmetric ? min_size_ : 0); }

  /// Of n numbers from a block's start; returns how many blocks were found.
  HWY_INLINE std::size_t find(const float* x, std::size_t n) {
    const DF df;
    std::size_t count = 0;
    for (std::size_t at = 0; count < kMany && at < n;) {
      VF lows[kLanes], highs[kLanes];
      const std::size_t first = count;
      for (std::size_t b = 0; b < kLanes; ++b) {
        if (at >= n) {
          lows[b] = highs[b] = hn::Zero(df);
          continue;
        }
        const MinMaxLanes range = min_max_lanes(x + at, std::min(f_.block, n - at));
        lows[b] = range.min;
        highs[b] = range.max;
        finite_[count++] = range.finite;
        at += f_.block;
      }
      hn::Store(fold_each(lows, [](VF a, VF b) { return hn::Min(a, b); }), df, min_ + first);
      hn::Store(fold_each(highs, [](VF a, VF b) { return hn::Max(a, b); }), df, max_ + first);
    }
    for (std::size_t b = 0; b < count; b += kLanes) find_factors(b);
    return count;
  }

  HWY_INLINE IntFactors write(std::size_t b, double shift, std::byte* meta) const {
    const bool usual = finite_[b] && top_[b] >= 0x1p-60F && top_[b] < 0x1p126F &&
                       range_[b] > 0 && f_.rounding != Rounding::kShift;
    if (HWY_UNLIKELY(!usual)) {
      return write_int_meta(f_, {min_[b], max_[b], finite_[b]}, shift, meta);
    }
    copy_meta(step_size_, step_code_ + b, meta);
    if (f_.asymmetric) copy_meta(min_size_, min_code_ + b, meta + step_size_);
    return {.pre = 1,
            .offset = offset_[b],
            .mul = mul_[b],
            .low = f_.asymmetric ? 0 : -f_.divisor(),
            .high = static_cast<float>(f_.highest()),
            .zero = false};
  }

 private:
  static constexpr std::size_t kMany = 8 * kLanes;

  HWY_INLINE void find_factors(std::size_t at) {
    const DF df;
    const VF min = hn::Load(df, min_ + at), max = hn::Load(df, max_ + at);
    const VF top = hn::Max(hn::Abs(min), hn::Abs(max));
    hn::Store(top, df, top_ + at);
    VF z = hn::Zero(df);
    Doubles range = widen(top);
    if (f_.asymmetric) {
      const MetaFormat format = min_format(f_.scale);
      const VU code = code_below(format, min);
      hn::Store(code, DU(), min_code_ + at);
      z = meta_value(format, code);
      range = widen(max) - widen(z);
    }
    hn::Store(z, df, offset_ + at);
    hn::Store(narrow(range), df, range_ + at);
    const VU step = code_above(f_.scale, range / both(f_.divisor()));
    hn::Store(step, DU(), step_code_ + at);
    hn::Store(narrow(both(1) / widen(meta_value(f_.scale, step))), df, mul_ + at);
  }

  const IntPlaneFormat& f_;
  std::size_t step_size_, min_size_;
  bool finite_[kMany];
  alignas(64) float min_[kMany], max_[kMany], top_[kMany];
  alignas(64) float offset_[kMany], range_[kMany], mul_[kMany];
  alignas(64) std::uint32_t step_code_[kMany], min_code_[kMany];
};

/// Decodes it.
class FewIntMetas {
 public:
  explicit FewIntMetas(const IntPlaneFormat& f)
      : f_(f), step_size_(meta_size(f.scale)), min_size_(meta_size(min_format(f.scale))) {}
  std::size_t bytes() const { return step_size_ + (f_.asymmetric ? min_size_ : 0); }

  HWY_INLINE void read(const std::byte* meta, std::size_t count) {
    alignas(64) std::uint32_t step[kLanes] = {}, min[kLanes] = {};
    meta_ = meta;
    for (std::size_t b = 0; b < count; ++b, meta += bytes()) {
      copy_meta(step_size_, meta, step + b);
      if (f_.asymmetric) copy_meta(min_size_, meta + step_size_, min + b);
    }
    hn::Store(meta_value(f_.scale, hn::Load(DU(), step)), DF(), step_);
    hn::Store(meta_value(min_format(f_.scale), hn::Load(DU(), min)), DF(), min_);
  }
  /// Far enough from overflow that nothing has to be scaled or clamped.
  HWY_INLINE bool plain(std::size_t b) const {
    return std::fabs(step_[b]) < 0x1p117F && std::fabs(min_[b]) < 0x1p125F;
  }
  HWY_INLINE IntMeta operator[](std::size_t b) const {
    if (HWY_LIKELY(plain(b))) return {step_[b], min_[b], 1};
    return read_int_meta(f_, meta_ + b * bytes());
  }

 private:
  const IntPlaneFormat& f_;
  std::size_t step_size_, min_size_;
  const std::byte* meta_ = nullptr;
  alignas(64) float step_[kLanes], min_[kLanes];
};

#endif  // ZEROPP_SIMD
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_INT_PLANE_META_INL_H_
