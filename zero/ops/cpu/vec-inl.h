// Sixteen lanes at a time, compiled once for each instruction set (Highway's foreach_target)
// and chosen at run time. The lane count is part of the meaning: sums run over 16 interleaved
// partial sums that are folded in a fixed order, so every instruction set gives the same bits.
// That is why these are compiler vectors of fixed length and not Highway's.

#include <cstddef>
#include <cstdint>

#include "quant/dtype.h"

#if defined(ZEROPP_ZERO_OPS_CPU_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_ZERO_OPS_CPU_VEC_INL_H_
#undef ZEROPP_ZERO_OPS_CPU_VEC_INL_H_
#else
#define ZEROPP_ZERO_OPS_CPU_VEC_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace zeropp::zero::ops {
namespace HWY_NAMESPACE {

constexpr std::size_t kLanes = 16;
typedef float F __attribute__((vector_size(64)));
typedef std::uint32_t U __attribute__((vector_size(64)));
typedef std::uint16_t H __attribute__((vector_size(32)));

HWY_INLINE F splat(float x) { return F{} + x; }
HWY_INLINE U as_bits(F x) { return reinterpret_cast<U>(x); }
HWY_INLINE F as_float(U x) { return reinterpret_cast<F>(x); }
HWY_INLINE F maximum(F a, F b) { return a > b ? a : b; }  ///< NaN in b wins.

/// Folds lanes as ((l + l+8) + (l+4 + l+12)) + ...
HWY_INLINE float sum_lanes(F x) {
  float v[kLanes];
  __builtin_memcpy(v, &x, sizeof(x));
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
  }
  return v[0];
}
HWY_INLINE float max_lanes(F x) {
  float v[kLanes];
  __builtin_memcpy(v, &x, sizeof(x));
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) v[i] = v[i] > v[i + half] ? v[i] : v[i + half];
  }
  return v[0];
}

/// x in the first n lanes, 0 in the others.
HWY_INLINE F first_lanes(F x, std::size_t n) {
  const U lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < static_cast<std::uint32_t>(n) + U{} ? x : F{};
}

/// Element types: how 16 stored elements become 16 floats and back (round to nearest even).
struct F32 {
  using Element = float;
  typedef float Stored __attribute__((vector_size(64)));
  static HWY_INLINE F widen(Stored x) { return x; }
  static HWY_INLINE Stored narrow(F x) { return x; }
};
struct BF16 {
  using Element = std::uint16_t;
  using Stored = H;
  static HWY_INLINE F widen(Stored x) { return as_float(__builtin_convertvector(x, U) << 16); }
  static HWY_INLINE Stored narrow(F x) {
    const U bits = as_bits(x);
    const U rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
    const U quiet = bits | 0x400000U;
    const U out = x == x ? rounded : quiet;  // NOLINT(misc-redundant-expression): not NaN.
    return __builtin_convertvector(out >> 16, H);
  }
};
struct F16 {
  using Element = std::uint16_t;
  using Stored = H;
  static HWY_INLINE F widen(Stored x) {
    const U h = __builtin_convertvector(x, U);
    const U magnitude = (h & 0x7FFFU) << 13;
    // 2^112 moves the exponent's bias and makes fp16 subnormals exact; Inf and NaN keep theirs.
    const U scaled = as_bits(as_float(magnitude) * splat(0x1p112F));
    const U special = magnitude | 0x7F800000U;
    const U value = magnitude >= (0x7C00U << 13) + U{} ? special : scaled;
    return as_float(value | ((h & 0x8000U) << 16));
  }
  static HWY_INLINE Stored narrow(F x) {
    const U bits = as_bits(x);
    const U sign = (bits >> 16) & 0x8000U;
    const U mag = bits & 0x7FFFFFFFU;
    const U normal = (mag + 0xC8000FFFU + ((mag >> 13) & 1U)) >> 13;  // bias 127 -> 15
    // Adding 0.5 puts the last bit of a subnormal at the last bit of the float.
    const U subnormal = as_bits(as_float(mag) + splat(0.5F)) - 0x3F000000U;
    const U inf = U{} + 0x7C00U;
    const U nan = 0x7E00U | ((mag >> 13) & 0x3FFU);
    U out = mag < 0x38800000U + U{} ? subnormal : normal;
    out = mag >= 0x477FF000U + U{} ? inf : out;
    out = mag > 0x7F800000U + U{} ? nan : out;
    return __builtin_convertvector(out | sign, H);
  }
};

template <class T>
HWY_INLINE F load(const void* base, std::size_t i) {
  typename T::Stored s;
  __builtin_memcpy(&s, static_cast<const typename T::Element*>(base) + i, sizeof(s));
  return T::widen(s);
}
template <class T>
HWY_INLINE void store(F x, void* base, std::size_t i) {
  const typename T::Stored s = T::narrow(x);
  __builtin_memcpy(static_cast<typename T::Element*>(base) + i, &s, sizeof(s));
}
/// The first n < 16 elements; the other lanes are `fill`.
template <class T>
HWY_INLINE F load_n(const void* base, std::size_t i, std::size_t n, float fill = 0) {
  typename T::Stored s = T::narrow(splat(fill));
  __builtin_memcpy(&s, static_cast<const typename T::Element*>(base) + i,
                   n * sizeof(typename T::Element));
  return T::widen(s);
}
template <class T>
HWY_INLINE void store_n(F x, void* base, std::size_t i, std::size_t n) {
  const typename T::Stored s = T::narrow(x);
  __builtin_memcpy(static_cast<typename T::Element*>(base) + i, &s,
                   n * sizeof(typename T::Element));
}
/// load or load_n for a row of n elements at i.
template <class T>
HWY_INLINE F load_row(const void* base, std::size_t i, std::size_t n, float fill = 0) {
  return i + kLanes <= n ? load<T>(base, i) : load_n<T>(base, i, n - i, fill);
}
template <class T>
HWY_INLINE void store_row(F x, void* base, std::size_t i, std::size_t n) {
  if (i + kLanes <= n) {
    store<T>(x, base, i);
  } else {
    store_n<T>(x, base, i, n - i);
  }
}

/// e^x within 2 ulp; 0 below -87.3 (results that would be subnormal), Inf above 88.7. Cephes'
/// polynomial on [-ln2/2, ln2/2], every operation rounded once.
HWY_INLINE F exp16(F x) {
  const F magic = splat(0x1.8p23F);  // Adding it rounds to an integer.
  const F t = x * 1.44269504F + magic;
  const F n = t - magic;
  F r = x - n * 0.693359375F;  // ln 2 in two parts; the first product is exact.
  r = r - n * -2.12194440e-4F;
  F p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const U half_scale = (as_bits(t) - 0x4B400000U + 126U) << 23;  // 2^(n-1): n may be 128.
  const F y = p * as_float(half_scale) * 2.0F;
  const F low = x < splat(-87.3365448F) ? F{} : y;
  return x > splat(88.7228394F) ? splat(__builtin_inff()) : low;
}

/// 1 / (1 + e^-x).
HWY_INLINE F sigmoid16(F x) { return 1.0F / (exp16(-x) + 1.0F); }

/// Runs the statement with T naming the element type of `dtype`.
#undef ZEROPP_FOR_DTYPE
#define ZEROPP_FOR_DTYPE(dtype, ...)      \
  switch (dtype) {                        \
    case ::zeropp::quant::Dtype::kF32: {  \
      using T = F32;                      \
      __VA_ARGS__;                        \
    } break;                              \
    case ::zeropp::quant::Dtype::kBF16: { \
      using T = BF16;                     \
      __VA_ARGS__;                        \
    } break;                              \
    case ::zeropp::quant::Dtype::kF16: {  \
      using T = F16;                      \
      __VA_ARGS__;                        \
    } break;                              \
  }

}  // namespace HWY_NAMESPACE
}  // namespace zeropp::zero::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
