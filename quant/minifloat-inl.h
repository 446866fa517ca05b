// The element formats of float_formats.h, a vector of numbers at a time, and the doubles that
// products of scales need. Included once per instruction set.

#if defined(ZEROPP_QUANT_MINIFLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_MINIFLOAT_INL_H_
#undef ZEROPP_QUANT_MINIFLOAT_INL_H_
#else
#define ZEROPP_QUANT_MINIFLOAT_INL_H_
#endif

#include <type_traits>

#include "quant/float_formats.h"
#include "quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

HWY_INLINE VU set_bits(std::uint32_t u) { return hn::Set(DU(), u); }

/// Signed comparison: both sides are below 2^31.
HWY_INLINE hn::Mask<DU> above(VU a, std::uint32_t b) {
  const VI limit = hn::Set(DI(), static_cast<std::int32_t>(b));
  return hn::RebindMask(DU(), hn::Gt(hn::BitCast(DI(), a), limit));
}

/// kLanes values of 16 by index 0 .. 15.
HWY_INLINE VF lookup16(const float* table, VU index) {
  if constexpr (kLanes == 16) {
    return hn::TableLookupLanes(hn::Load(DF(), table), hn::IndicesFromVec(DF(), index));
  } else if constexpr (kLanes == 8) {
    const auto at = hn::IndicesFromVec(DF(), hn::And(index, set_bits(7)));
    const VF low = hn::TableLookupLanes(hn::Load(DF(), table), at);
    const VF high = hn::TableLookupLanes(hn::Load(DF(), table + 8), at);
    return hn::IfThenElse(hn::RebindMask(DF(), above(index, 7)), high, low);
  } else {
    alignas(64) std::uint32_t at[kLanes];
    alignas(64) float values[kLanes];
    hn::Store(index, DU(), at);
    for (std::size_t i = 0; i < kLanes; ++i) values[i] = table[at[i]];
    return hn::Load(DF(), values);
  }
}

/// F::decode.
template <class F>
HWY_INLINE VF decode_codes(VU code) {
  if constexpr (std::is_same_v<F, Nf4>) {
    alignas(64) static constexpr auto kLevels = Nf4::levels();
    return lookup16(kLevels.data(), code);
  } else {
    constexpr int kM = F::kMantissa;
    constexpr auto kTop = static_cast<std::uint32_t>(F::kTop);
    const VU c = hn::And(code, set_bits(F::kMagnitude));
    const VU sign = hn::And(hn::ShiftLeft<32 - F::kBits>(code), set_bits(0x80000000));
    const VU normal = hn::Add(hn::ShiftLeft<23 - kM>(c),
                              set_bits(static_cast<std::uint32_t>(127 - F::kBias) << 23));
    const VF smallest =
        hn::BitCast(DF(), set_bits(static_cast<std::uint32_t>(128 - F::kBias - kM) << 23));
    const VF subnormal = hn::Mul(hn::ConvertTo(DF(), hn::BitCast(DI(), c)), smallest);
    VU u = hn::IfThenElse(above(c, (1 << kM) - 1), normal, hn::BitCast(DU(), subnormal));
    if constexpr (F::kOneNan || F::kIeee) {
      u = hn::IfThenElse(above(c, kTop), set_bits(0x7FC00000), u);
    }
    if constexpr (F::kIeee) {
      u = hn::IfThenElse(hn::Eq(c, set_bits(kTop + 1)), set_bits(0x7F800000), u);
    }
    return hn::BitCast(DF(), hn::Or(u, sign));
  }
}

/// Levels of Nf4 lie between the thresholds; how many of those are below v is the code.
HWY_INLINE VU encode_nf4(VF v) {
  alignas(64) static constexpr auto kMiddles = Nf4::middles();
  const auto step = [&](VU code, VF middle, std::uint32_t by) {
    return hn::Add(code,
                   hn::IfThenElseZero(hn::RebindMask(DU(), hn::Gt(v, middle)), set_bits(by)));
  };
  VU code = hn::Zero(DU());
  if constexpr (kLanes >= 8) {
    code = step(code, hn::Set(DF(), kMiddles[7]), 8);
    code = step(code, lookup16(kMiddles.data(), hn::Add(code, set_bits(3))), 4);
    code = step(code, lookup16(kMiddles.data(), hn::Add(code, set_bits(1))), 2);
    return step(code, lookup16(kMiddles.data(), code), 1);
  } else {
    for (std::size_t i = 0; i < 15; ++i) code = step(code, hn::Set(DF(), kMiddles[i]), 1);
    return code;
  }
}

/// Bits of the number that, added to a, rounds it to a multiple of its last place.
template <class F>
HWY_INLINE VU unit_of(VF a) {
  constexpr int kLowest = 128 - F::kBias;
  const VI exponent = hn::And(hn::BitCast(DI(), a), hn::Set(DI(), 0x7F800000));
  const VI lifted = hn::Max(exponent, hn::Set(DI(), kLowest << 23));
  return hn::BitCast(DU(), hn::Add(lifted, hn::Set(DI(), (23 - F::kMantissa) << 23)));
}

/// Code of the first number of a binade above the subnormals', less its units.
template <class F>
HWY_INLINE VU binade_of(VU unit) {
  constexpr std::uint32_t kFirst = static_cast<std::uint32_t>(151 - F::kBias - F::kMantissa);
  return hn::ShiftRight<23 - F::kMantissa>(hn::Sub(unit, set_bits(kFirst << 23)));
}

/// F::encode; the code is the whole lane.
template <class F>
HWY_INLINE VU encode_codes(VF v) {
  if constexpr (std::is_same_v<F, Nf4>) {
    return encode_nf4(v);
  } else {
    const VU sign = hn::And(hn::ShiftRight<32 - F::kBits>(hn::BitCast(DU(), v)),
                            set_bits(F::kMagnitude + 1));
    const VF a = hn::Min(hn::Abs(v), hn::Set(DF(), F::kMax));
    const VU unit = unit_of<F>(a);
    const VU units = hn::Sub(hn::BitCast(DU(), hn::Add(a, hn::BitCast(DF(), unit))), unit);
    return hn::Or(sign, hn::Add(units, binade_of<F>(unit)));
  }
}

/// F::encode(v, u).
template <class F>
HWY_INLINE VU encode_codes(VF v, VF u) {
  const VU one = set_bits(1);
  if constexpr (std::is_same_v<F, Nf4>) {
    alignas(64) static constexpr auto kLevels = Nf4::levels();
    alignas(64) static constexpr auto kGaps = Nf4::gaps();
    VU code = hn::Zero(DU());
    for (std::size_t i = 1; i < 15; ++i) {
      const auto reaches = hn::Ge(v, hn::Set(DF(), kLevels[i]));
      code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(DU(), reaches), one));
    }
    const VF above_level = hn::Sub(v, lookup16(kLevels.data(), code));
    const auto up = hn::Lt(hn::Mul(u, lookup16(kGaps.data(), code)), above_level);
    return hn::Add(code, hn::IfThenElseZero(hn::RebindMask(DU(), up), one));
  } else {
    constexpr int kM = F::kMantissa, kLowest = 128 - F::kBias;
    const VU sign = hn::And(hn::ShiftRight<32 - F::kBits>(hn::BitCast(DU(), v)),
                            set_bits(F::kMagnitude + 1));
    const VF a = hn::Min(hn::Abs(v), hn::Set(DF(), F::kMax));
    const VI e = hn::BitCast(DI(), hn::ShiftRight<23>(hn::BitCast(DU(), a)));
    const VI exponent = hn::Max(e, hn::Set(DI(), kLowest));
    const VI inverse = hn::ShiftLeft<23>(hn::Sub(hn::Set(DI(), 254 + kM), exponent));
    const VF units = hn::Mul(a, hn::BitCast(DF(), inverse));
    const VF below = hn::Floor(units);
    const auto up = hn::RebindMask(DU(), hn::Lt(u, hn::Sub(units, below)));
    const VU binade =
        hn::ShiftLeft<kM>(hn::BitCast(DU(), hn::Sub(exponent, hn::Set(DI(), kLowest))));
    const VU lower = hn::Add(hn::BitCast(DU(), hn::ConvertTo(DI(), below)), binade);
    return hn::Or(sign, hn::Add(lower, hn::IfThenElseZero(up, one)));
  }
}

// ---- Doubles. ------------------------------------------------------------------------------

using DHalf = hn::Half<DF>;
using DD = hn::Rebind<double, DHalf>;
using VD = hn::Vec<DD>;

struct Doubles {
  VD low, high;
};

HWY_INLINE Doubles widen(VF v) {
  return {hn::PromoteTo(DD(), hn::LowerHalf(v)),
          hn::PromoteTo(DD(), hn::UpperHalf(DHalf(), v))};
}

/// Rounded to nearest even.
HWY_INLINE VF narrow(Doubles v) {
  return hn::Combine(DF(), hn::DemoteTo(DHalf(), v.high), hn::DemoteTo(DHalf(), v.low));
}

HWY_INLINE Doubles operator*(Doubles a, Doubles b) {
  return {hn::Mul(a.low, b.low), hn::Mul(a.high, b.high)};
}
HWY_INLINE Doubles operator/(Doubles a, Doubles b) {
  return {hn::Div(a.low, b.low), hn::Div(a.high, b.high)};
}
HWY_INLINE Doubles operator-(Doubles a, Doubles b) {
  return {hn::Sub(a.low, b.low), hn::Sub(a.high, b.high)};
}
HWY_INLINE Doubles operator+(Doubles a, Doubles b) {
  return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)};
}
HWY_INLINE Doubles both(double x) { return {hn::Set(DD(), x), hn::Set(DD(), x)}; }

#endif  // ZEROPP_SIMD
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_MINIFLOAT_INL_H_
