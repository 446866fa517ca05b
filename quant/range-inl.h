// Largest magnitude, minimum and maximum of runs of numbers. Included once per instruction set.

#if defined(ZEROPP_QUANT_RANGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_RANGE_INL_H_
#undef ZEROPP_QUANT_RANGE_INL_H_
#else
#define ZEROPP_QUANT_RANGE_INL_H_
#endif

#include "quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

// A NaN wins, since magnitudes are compared as integers.

HWY_INLINE float max_of_lanes(VI v) {
  return hn::GetLane(hn::BitCast(DF(), hn::MaxOfLanes(DI(), v)));
}

HWY_INLINE VI magnitude(VF v) { return hn::BitCast(DI(), abs_bits(v)); }

template <Dtype kType>
HWY_INLINE float absmax_of_tile(const std::byte* x) {
  const auto bits = [&](std::size_t j) {
    return magnitude(load<kType>(x + j * kLanes * size_of(kType)));
  };
  const VI a = hn::Max(bits(0), bits(1)), b = hn::Max(bits(2), bits(3));
  const VI c = hn::Max(bits(4), bits(5)), d = hn::Max(bits(6), bits(7));
  return max_of_lanes(hn::Max(hn::Max(a, b), hn::Max(c, d)));
}

template <Dtype kType>
HWY_INLINE float absmax(const std::byte* x, std::size_t m) {
  constexpr std::size_t kSize = size_of(kType);
  const auto bits = [&](std::size_t i) { return magnitude(load<kType>(x + i * kSize)); };
  VI a = hn::Zero(DI()), b = a, c = a, d = a;
  std::size_t i = 0;
  for (; i + 8 * kLanes <= m; i += 8 * kLanes) {
    a = hn::Max(a, hn::Max(bits(i), bits(i + kLanes)));
    b = hn::Max(b, hn::Max(bits(i + 2 * kLanes), bits(i + 3 * kLanes)));
    c = hn::Max(c, hn::Max(bits(i + 4 * kLanes), bits(i + 5 * kLanes)));
    d = hn::Max(d, hn::Max(bits(i + 6 * kLanes), bits(i + 7 * kLanes)));
  }
  for (; i + kLanes <= m; i += kLanes) a = hn::Max(a, bits(i));
  if (i < m) b = hn::Max(b, magnitude(load_some<kType>(x + i * kSize, m - i)));
  return max_of_lanes(hn::Max(hn::Max(a, b), hn::Max(c, d)));
}

HWY_INLINE float absmax(const float* x, std::size_t m) {
  return absmax<Dtype::kF32>(reinterpret_cast<const std::byte*>(x), m);
}

/// The same three for fp32; min and max mean nothing where a number is NaN, which absmax shows.
struct MinMax {
  float min, max, absmax;
};

HWY_INLINE MinMax min_max(const float* x, std::size_t m) {
  const DF df;
  VF low0, low1, high0, high1;
  VI top0 = hn::Zero(DI()), top1 = top0;
  std::size_t i = 0;
  if (m >= kLanes) {
    low0 = low1 = high0 = high1 = hn::LoadU(df, x);
  } else {
    low0 = low1 = high0 = high1 = hn::Set(df, x[0]);
  }
  for (; i + 2 * kLanes <= m; i += 2 * kLanes) {
    const VF a = hn::LoadU(df, x + i), b = hn::LoadU(df, x + i + kLanes);
    low0 = hn::Min(low0, a);
    low1 = hn::Min(low1, b);
    high0 = hn::Max(high0, a);
    high1 = hn::Max(high1, b);
    top0 = hn::Max(top0, magnitude(a));
    top1 = hn::Max(top1, magnitude(b));
  }
  if (i < m) {
    const auto rest = [&](VF a) {
      low0 = hn::Min(low0, a);
      high0 = hn::Max(high0, a);
      top0 = hn::Max(top0, magnitude(a));
    };
    if (i + kLanes <= m) {
      rest(hn::LoadU(df, x + i));
      i += kLanes;
    }
    if (i < m) {
      alignas(64) float lanes[kLanes];
      hn::Store(hn::Set(df, x[i]), df, lanes);  // Repeats a number, not a zero.
      std::memcpy(lanes, x + i, (m - i) * sizeof(float));
      rest(hn::Load(df, lanes));
    }
  }
  return {hn::GetLane(hn::MinOfLanes(df, hn::Min(low0, low1))),
          hn::GetLane(hn::MaxOfLanes(df, hn::Max(high0, high1))),
          max_of_lanes(hn::Max(top0, top1))};
}

#endif  // ZEROPP_SIMD
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_RANGE_INL_H_
