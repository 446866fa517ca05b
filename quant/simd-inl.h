// Loads and stores of the three dtypes as fp32 vectors; the bits of convert.h's scalar
// functions. Included once per instruction set by Highway's foreach_target.

#if defined(ZEROPP_QUANT_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_SIMD_INL_H_
#undef ZEROPP_QUANT_SIMD_INL_H_
#else
#define ZEROPP_QUANT_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quant/dtype.h"

// A CPU without SSSE3 (or another architecture's plain fallback) runs the scalar reference.
#undef ZEROPP_SIMD
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE
#define ZEROPP_SIMD 0
#else
#define ZEROPP_SIMD 1
#endif

// AVX2 and up convert fp16 in hardware; Highway's software fp16 has no Inf, NaN or subnormals.
#undef ZEROPP_HARDWARE_F16
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define ZEROPP_HARDWARE_F16 1
#else
#define ZEROPP_HARDWARE_F16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using DU16 = hn::Rebind<std::uint16_t, DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using VI = hn::Vec<DI>;
using VU16 = hn::Vec<DU16>;
constexpr std::size_t kLanes = hn::MaxLanes(DF());
constexpr std::size_t kTile = 8 * kLanes;  ///< What fits in registers at once.
constexpr std::size_t kGroup = 32;         ///< IntBlockFormat::kGroup.
constexpr std::size_t kGroupVectors = kGroup / kLanes;
static_assert(kGroup % (2 * kLanes) == 0);

HWY_INLINE VU abs_bits(VF v) {
  return hn::And(hn::BitCast(DU(), v), hn::Set(DU(), 0x7FFFFFFF));
}

/// Any NaN becomes 0x7FC00000, as reference::canonical.
HWY_INLINE VF canonical(VF v) {
  const VF nan = hn::BitCast(DF(), hn::Set(DU(), 0x7FC00000));
  return hn::IfThenElse(hn::Eq(v, v), v, nan);
}

HWY_INLINE VF from_bf16(VU16 h) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), h)));
}

HWY_INLINE VU16 to_bf16(VF v) {
  const DU du;
  const VU u = hn::BitCast(du, v);
  const VU top = hn::ShiftRight<16>(u);
  const VU odd = hn::And(top, hn::Set(du, 1));
  const VU rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7FFF))));
  const VU quiet = hn::Or(top, hn::Set(du, 0x40));
  return hn::TruncateTo(DU16(),
                        hn::IfThenElse(hn::RebindMask(du, hn::Eq(v, v)), rounded, quiet));
}

#if ZEROPP_HARDWARE_F16

HWY_INLINE VF from_f16(VU16 h) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::BitCast(dh, h));
}
HWY_INLINE VU16 to_f16(VF v) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::BitCast(DU16(), hn::DemoteTo(dh, v));
}

#else

HWY_INLINE VF from_f16(VU16 h) {
  const DU du;
  const VU b = hn::PromoteTo(du, h);
  const VU sign = hn::ShiftLeft<16>(hn::And(b, hn::Set(du, 0x8000)));
  const VU exponent = hn::And(b, hn::Set(du, 0x7C00)),
           mantissa = hn::And(b, hn::Set(du, 0x3FF));
  const VU shifted = hn::ShiftLeft<13>(hn::And(b, hn::Set(du, 0x7FFF)));
  const VU normal = hn::Add(shifted, hn::Set(du, 0x38000000));
  const VU subnormal = hn::BitCast(
      du, hn::Mul(hn::ConvertTo(DF(), hn::BitCast(DI(), mantissa)), hn::Set(DF(), 0x1p-24F)));
  const VU quiet = hn::IfThenZeroElse(hn::Eq(mantissa, hn::Zero(du)), hn::Set(du, 0x400000));
  const VU special = hn::Or(hn::Or(shifted, hn::Set(du, 0x7F800000)), quiet);
  const VU magnitude =
      hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), subnormal,
                     hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x7C00)), special, normal));
  return hn::BitCast(DF(), hn::Or(sign, magnitude));
}

HWY_INLINE VU16 to_f16(VF v) {
  const DU du;
  const DI di;
  const VU a = abs_bits(v);
  const VI ai = hn::BitCast(di, a);
  const VU sign = hn::ShiftRight<16>(hn::And(hn::BitCast(du, v), hn::Set(du, 0x80000000)));
  const VU odd = hn::And(hn::ShiftRight<13>(a), hn::Set(du, 1));
  const VU normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(a, odd), hn::Set(du, 0xFFFU - 0x38000000U)));
  const VF half = hn::Set(DF(), 0.5F);
  const VU subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(DF(), a), half)), hn::BitCast(du, half));
  const VU nan =
      hn::Or(hn::Set(du, 0x7E00), hn::And(hn::ShiftRight<13>(a), hn::Set(du, 0x3FF)));
  const auto above = [&](int bits) {
    return hn::RebindMask(du, hn::Gt(ai, hn::Set(di, bits)));
  };
  VU h = hn::IfThenElse(above(0x38800000 - 1), normal, subnormal);
  h = hn::IfThenElse(above(0x477FF000 - 1), hn::Set(du, 0x7C00), h);
  h = hn::IfThenElse(above(0x7F800000), nan, h);
  return hn::TruncateTo(DU16(), hn::Or(sign, h));
}

#endif  // ZEROPP_HARDWARE_F16

/// kLanes numbers at any address as fp32, and back.
template <Dtype kType>
HWY_INLINE VF load(const std::byte* p) {
  if constexpr (kType == Dtype::kF32) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(p));
  } else {
    const VU16 h = hn::LoadU(DU16(), reinterpret_cast<const std::uint16_t*>(p));
    return kType == Dtype::kBF16 ? from_bf16(h) : from_f16(h);
  }
}

template <Dtype kType>
HWY_INLINE void store(VF v, std::byte* p) {
  if constexpr (kType == Dtype::kF32) {
    hn::StoreU(v, DF(), reinterpret_cast<float*>(p));
  } else {
    const VU16 h = kType == Dtype::kBF16 ? to_bf16(v) : to_f16(v);
    hn::StoreU(h, DU16(), reinterpret_cast<std::uint16_t*>(p));
  }
}

/// Past the caches; p is a multiple of the vector's bytes.
template <Dtype kType>
HWY_INLINE void stream(VF v, std::byte* p) {
  if constexpr (kType == Dtype::kF32) {
    hn::Stream(v, DF(), reinterpret_cast<float*>(p));
  } else {
    const VU16 h = kType == Dtype::kBF16 ? to_bf16(v) : to_f16(v);
    hn::Stream(h, DU16(), reinterpret_cast<std::uint16_t*>(p));
  }
}

/// The first m < kLanes numbers; lanes beyond are zero, and are not written.
template <Dtype kType>
HWY_INLINE VF load_some(const std::byte* p, std::size_t m) {
  alignas(64) std::byte lanes[kLanes * 4] = {};
  std::memcpy(lanes, p, m * size_of(kType));
  return load<kType>(lanes);
}

template <Dtype kType>
HWY_INLINE void store_some(VF v, std::byte* p, std::size_t m) {
  alignas(64) std::byte lanes[kLanes * 4];
  store<kType>(v, lanes);
  std::memcpy(p, lanes, m * size_of(kType));
}

/// Non-temporal stores pay when the result cannot stay in a cache: they save the read of every
/// line before it is written.
constexpr std::size_t kStreamBytes = std::size_t{24} << 20;

template <Dtype kType>
HWY_INLINE bool can_stream(const void* p, std::size_t n) {
  return n * size_of(kType) >= kStreamBytes &&
         reinterpret_cast<std::uintptr_t>(p) % (kLanes * size_of(kType)) == 0;
}

// ---- Low bytes of 32-bit lanes, and back. --------------------------------------------------

HWY_INLINE void store_bytes(VU low_bytes, std::byte* p) {
  const hn::Rebind<std::uint8_t, DU> d8;
  hn::StoreU(hn::TruncateTo(d8, low_bytes), d8, reinterpret_cast<std::uint8_t*>(p));
}

HWY_INLINE void store_bytes(VU first, VU second, std::byte* p) {
  const hn::Repartition<std::uint16_t, DU> d16;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  const auto words = hn::ConcatEven(d16, hn::BitCast(d16, second), hn::BitCast(d16, first));
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // Highway 1.0 truncates in two shuffles; there is an instruction.
  const hn::Vec<decltype(d8)> bytes{_mm512_cvtepi16_epi8(words.raw)};
#else
  const auto bytes = hn::TruncateTo(d8, words);
#endif
  hn::StoreU(bytes, d8, reinterpret_cast<std::uint8_t*>(p));
}

HWY_INLINE VU load_bytes(const std::uint8_t* p) {
  return hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<std::uint8_t, DU>(), p));
}

#endif  // ZEROPP_SIMD

/// Calls f with the dtype as a compile-time constant.
template <class F>
HWY_INLINE void with_dtype(Dtype d, const F& f) {
  switch (d) {
    case Dtype::kF32:
      return f(std::integral_constant<Dtype, Dtype::kF32>());
    case Dtype::kBF16:
      return f(std::integral_constant<Dtype, Dtype::kBF16>());
    case Dtype::kF16:
      return f(std::integral_constant<Dtype, Dtype::kF16>());
  }
}

}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_SIMD_INL_H_
