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

/// Lane b of the result is op over all lanes of v[b]: for quads of lanes (0 op 2) op (1 op 3),
/// for those results (0 op 1) op (2 op 3).
template <class V, class Op>
HWY_INLINE V fold_each(const V (&v)[kLanes], const Op& op) {
  const hn::DFromV<V> d;
  const hn::Repartition<std::uint64_t, decltype(d)> d64;
  V quads[kLanes / 4];
  for (std::size_t i = 0; i < kLanes / 4; ++i) {
    const V *a = v + 4 * i, *b = a + 1, *c = a + 2, *e = a + 3;
    const auto ab =
        hn::BitCast(d64, op(hn::InterleaveLower(d, *a, *b), hn::InterleaveUpper(d, *a, *b)));
    const auto ce =
        hn::BitCast(d64, op(hn::InterleaveLower(d, *c, *e), hn::InterleaveUpper(d, *c, *e)));
    quads[i] = op(hn::BitCast(d, hn::InterleaveLower(d64, ab, ce)),
                  hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce)));
  }
  const auto halves = [&](V low, V high) {
    return op(hn::ConcatLowerLower(d, high, low), hn::ConcatUpperUpper(d, high, low));
  };
  if constexpr (kLanes == 4) {
    return quads[0];
  } else if constexpr (kLanes == 8) {
    return halves(quads[0], quads[1]);
  } else {
    const auto neighbours = [&](V a, V b) {
      return op(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a),
                hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a)));
    };
    return halves(neighbours(quads[0], quads[1]), neighbours(quads[2], quads[3]));
  }
}

// Magnitudes are compared as integers, so that a NaN wins.

HWY_INLINE VI magnitude(VF v) { return hn::BitCast(DI(), abs_bits(v)); }

HWY_INLINE float max_of_lanes(VI v) {
  return hn::GetLane(hn::BitCast(DF(), hn::MaxOfLanes(DI(), v)));
}

/// Largest magnitude of m numbers in each lane.
template <Dtype kType>
HWY_INLINE VI absmax_lanes(const std::byte* x, std::size_t m) {
  constexpr std::size_t kSize = size_of(kType);
  const auto bits = [&](std::size_t i) { return magnitude(load<kType>(x + i * kSize)); };
  const auto pair = [&](std::size_t i) { return hn::Max(bits(i), bits(i + kLanes)); };
  std::size_t i = 0;
  VI a = hn::Zero(DI());
  if (m >= kTile) {
    a = pair(0);
    VI b = pair(2 * kLanes), c = pair(4 * kLanes), d = pair(6 * kLanes);
    for (i = kTile; i + kTile <= m; i += kTile) {
      a = hn::Max(a, pair(i));
      b = hn::Max(b, pair(i + 2 * kLanes));
      c = hn::Max(c, pair(i + 4 * kLanes));
      d = hn::Max(d, pair(i + 6 * kLanes));
    }
    a = hn::Max(hn::Max(a, b), hn::Max(c, d));
  }
  for (; i + kLanes <= m; i += kLanes) a = hn::Max(a, bits(i));
  if (i < m) a = hn::Max(a, magnitude(load_some<kType>(x + i * kSize, m - i)));
  return a;
}

HWY_INLINE VI absmax_lanes(const float* x, std::size_t m) {
  return absmax_lanes<Dtype::kF32>(reinterpret_cast<const std::byte*>(x), m);
}
HWY_INLINE float absmax(const float* x, std::size_t m) {
  return max_of_lanes(absmax_lanes(x, m));
}

HWY_INLINE VF max_of_each(const VI (&v)[kLanes]) {
  return hn::BitCast(DF(), fold_each(v, [](VI a, VI b) { return hn::Max(a, b); }));
}

/// Smallest and largest of m > 0 numbers in each lane, which mean nothing if one is NaN.
struct MinMaxLanes {
  VF min, max;
  bool finite;
};

HWY_INLINE MinMaxLanes min_max_lanes(const float* x, std::size_t m) {
  const DF df;
  VF low = hn::Set(df, x[0]), high = low;
  VI top = hn::Zero(DI());
  const auto add = [&](VF a) {
    low = hn::Min(low, a);
    high = hn::Max(high, a);
    top = hn::Max(top, magnitude(a));
  };
  std::size_t i = 0;
  if (m >= 4 * kLanes) {
    VF low1 = low, high1 = high;
    VI top1 = top;
    for (; i + 2 * kLanes <= m; i += 2 * kLanes) {
      const VF a = hn::LoadU(df, x + i);
      add(hn::LoadU(df, x + i + kLanes));
      low1 = hn::Min(low1, a);
      high1 = hn::Max(high1, a);
      top1 = hn::Max(top1, magnitude(a));
    }
    low = hn::Min(low, low1);
    high = hn::Max(high, high1);
    top = hn::Max(top, top1);
  }
  for (; i + kLanes <= m; i += kLanes) add(hn::LoadU(df, x + i));
  if (i < m) {
    alignas(64) float lanes[kLanes];
    hn::Store(hn::Set(df, x[i]), df, lanes);  // Repeats a number, not a zero.
    std::memcpy(lanes, x + i, (m - i) * sizeof(float));
    add(hn::Load(df, lanes));
  }
  return {low, high, hn::AllFalse(DI(), hn::Gt(top, hn::Set(DI(), 0x7F7FFFFF)))};
}

#endif  // ZEROPP_SIMD
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_RANGE_INL_H_
