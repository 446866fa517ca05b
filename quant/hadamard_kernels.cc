// Rotations, once per instruction set: butterflies inside a vector by swaps and a sign flip,
// between vectors in registers for up to kBase numbers, then in the cache.

#include <algorithm>
#include <bit>
#include <cfloat>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/hadamard_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "quant/convert.h"
#include "quant/hadamard.h"
#include "quant/reference.h"
#include "quant/simd-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

constexpr std::size_t kBase = 8 * kLanes;

/// Lane i becomes lane i ^ kDistance.
template <std::size_t kDistance>
HWY_INLINE VF swap_lanes(VF v) {
  const DF d;
  if constexpr (kDistance == 1) {
    return hn::Reverse2(d, v);
  } else if constexpr (kDistance == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (2 * kDistance == kLanes) {
    return hn::ConcatLowerUpper(d, v, v);
  } else {
    return hn::SwapAdjacentBlocks(v);
  }
}

/// The stage of that distance: a + b where the distance's bit of the lane is clear, else a - b.
template <std::size_t kDistance>
HWY_INLINE VF lane_stage(VF v) {
  const DU du;
  const VU bit = hn::And(hn::Iota(du, 0), hn::Set(du, kDistance));
  constexpr int kShift = 31 - (kDistance == 1   ? 0
                               : kDistance == 2 ? 1
                               : kDistance == 4 ? 2
                                                : 3);
  const VF flip = hn::BitCast(DF(), hn::ShiftLeft<kShift>(bit));
  return hn::Add(swap_lanes<kDistance>(v), hn::Xor(v, flip));
}

/// All stages inside vectors, for groups of m.
template <std::size_t kDistance = 1>
HWY_INLINE VF lane_stages(VF v, std::size_t m) {
  if constexpr (kDistance < kLanes) {
    if (kDistance < m) return lane_stages<2 * kDistance>(lane_stage<kDistance>(v), m);
  }
  return v;
}

/// kVectors vectors in registers: all stages of groups of min(m, kVectors * kLanes).
template <std::size_t kVectors>
HWY_INLINE void register_stages(VF (&v)[kVectors], std::size_t m) {
  for (std::size_t i = 0; i < kVectors; ++i) {
    v[i] = lane_stages(v[i], kVectors > 1 ? kLanes : m);
  }
  for (std::size_t h = 1; h < kVectors; h *= 2) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      if ((i & h) != 0) continue;
      const VF a = v[i], b = v[i + h];
      v[i] = hn::Add(a, b);
      v[i + h] = hn::Sub(a, b);
    }
  }
}

/// What is done to numbers on the way in and out of the butterflies of groups of m.
template <Dtype kFrom, Dtype kTo, bool kForward, bool kSigns>
struct Ends {
  const std::byte* src;
  std::byte* dst;
  const float* signs;
  VF scale, size;

  HWY_INLINE VF in(std::size_t i) const {
    VF v = load<kFrom>(src + i * size_of(kFrom));
    if constexpr (kForward && kSigns) v = hn::Mul(v, hn::LoadU(DF(), sign(i)));
    return hn::Mul(v, scale);
  }
  HWY_INLINE void out(std::size_t i, VF v) const {
    const DI di;
    const auto finite =
        hn::RebindMask(DF(), hn::Lt(hn::BitCast(di, abs_bits(v)), hn::Set(di, 0x7F800000)));
    if constexpr (!kForward) {
      v = hn::Mul(v, size);
      v = hn::Min(hn::Max(v, hn::Set(DF(), -FLT_MAX)), hn::Set(DF(), FLT_MAX));
      if constexpr (kSigns) v = hn::Mul(v, hn::LoadU(DF(), sign(i)));
    }
    const VF nan = hn::BitCast(DF(), hn::Set(DU(), 0x7FC00000));
    store<kTo>(hn::IfThenElse(finite, v, nan), dst + i * size_of(kTo));
  }
  const float* sign(std::size_t i) const {
    return kSigns ? signs + i % Rotation::kMaxGroup : nullptr;
  }
};

/// Numbers first .. last in steps of kVectors vectors, groups of min(m, kVectors * kLanes).
template <std::size_t kVectors, class E>
HWY_INLINE void in_registers(const E& ends, std::size_t m, std::size_t first,
                             std::size_t last) {
  for (; first < last; first += kVectors * kLanes) {
    VF v[kVectors];
    for (std::size_t i = 0; i < kVectors; ++i) v[i] = ends.in(first + i * kLanes);
    register_stages(v, m);
    for (std::size_t i = 0; i < kVectors; ++i) ends.out(first + i * kLanes, v[i]);
  }
}

/// One group of m > kBase: stages below kBase in registers, the others in `buffer`.
template <class E>
HWY_INLINE void in_cache(const E& ends, std::size_t m, std::size_t first, float* buffer) {
  const DF d;
  for (std::size_t at = 0; at < m; at += kBase) {
    VF v[8];
    for (std::size_t i = 0; i < 8; ++i) v[i] = ends.in(first + at + i * kLanes);
    register_stages(v, m);
    for (std::size_t i = 0; i < 8; ++i) hn::Store(v[i], d, buffer + at + i * kLanes);
  }
  for (std::size_t h = kBase; h < m; h *= 2) {
    const bool last = 2 * h == m;
    for (std::size_t i = 0; i < m; i += 2 * h) {
      for (std::size_t j = i; j < i + h; j += kLanes) {
        const VF a = hn::Load(d, buffer + j), b = hn::Load(d, buffer + j + h);
        if (last) {
          ends.out(first + j, hn::Add(a, b));
          ends.out(first + j + h, hn::Sub(a, b));
        } else {
          hn::Store(hn::Add(a, b), d, buffer + j);
          hn::Store(hn::Sub(a, b), d, buffer + j + h);
        }
      }
    }
  }
}

/// Groups of m in first .. last, whole vectors.
template <class E>
HWY_INLINE void transform(const E& ends, std::size_t m, std::size_t first, std::size_t last,
                          float* buffer) {
  if (m <= kLanes) return in_registers<1>(ends, m, first, last);
  if (m == 2 * kLanes) return in_registers<2>(ends, m, first, last);
  if (m == 4 * kLanes) return in_registers<4>(ends, m, first, last);
  if (m == 8 * kLanes) return in_registers<8>(ends, m, first, last);
  for (; first < last; first += m) in_cache(ends, m, first, buffer);
}

/// kForward: from x.dtype to fp32; else from fp32 to x.dtype.
template <Dtype kFrom, Dtype kTo, bool kForward, bool kSigns>
void run(const Rotation& r, const std::byte* src, std::byte* dst, std::size_t n) {
  alignas(64) float buffer[Rotation::kMaxGroup];
  using E = Ends<kFrom, kTo, kForward, kSigns>;
  const auto ends = [&](std::size_t m) {
    const auto size = static_cast<float>(m);
    return E{src, dst, r.signs.data(), hn::Set(DF(), 1.0F / size), hn::Set(DF(), size)};
  };
  const std::size_t step = std::max(r.group, kLanes), whole = n / step * step;
  transform(ends(r.group), r.group, 0, whole, buffer);
  for_rotation_groups(r.group, n - whole, [&](std::size_t at, std::size_t m) {
    const std::size_t first = whole + at;
    if (m >= kLanes) return transform(ends(m), m, first, first + m, buffer);
    float in[kLanes], out[kLanes];
    for (std::size_t i = 0; i < m; ++i) {
      in[i] = reference::load({src, kFrom, n}, first + i);
    }
    (kForward ? reference::rotate_group : reference::unrotate_group)(in, ends(m).sign(first), m,
                                                                     out);
    for (std::size_t i = 0; i < m; ++i) reference::store({dst, kTo, n}, first + i, out[i]);
  });
}

void Rotate(const Rotation& r, ConstView x, float* y) {
  const auto* src = static_cast<const std::byte*>(x.data);
  auto* dst = reinterpret_cast<std::byte*>(y);
  with_dtype(x.dtype, [&](auto type) {
    r.signs.empty() ? run<type(), Dtype::kF32, true, false>(r, src, dst, x.n)
                    : run<type(), Dtype::kF32, true, true>(r, src, dst, x.n);
  });
}

void Unrotate(const Rotation& r, const float* y, MutView x) {
  const auto* src = reinterpret_cast<const std::byte*>(y);
  auto* dst = static_cast<std::byte*>(x.data);
  with_dtype(x.dtype, [&](auto type) {
    r.signs.empty() ? run<Dtype::kF32, type(), false, false>(r, src, dst, x.n)
                    : run<Dtype::kF32, type(), false, true>(r, src, dst, x.n);
  });
}

#else

void Rotate(const Rotation& r, ConstView x, float* y) { reference::rotate(r, x, y); }
void Unrotate(const Rotation& r, const float* y, MutView x) { reference::unrotate(r, y, x); }

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(Rotate);
HWY_EXPORT(Unrotate);

void rotate(const Rotation& r, ConstView x, float* y) {
  scalar_forced() ? reference::rotate(r, x, y) : HWY_DYNAMIC_DISPATCH(Rotate)(r, x, y);
  const std::span<float> rest(y + x.n / r.group * r.group, x.n % r.group);
  if (!all_finite(view(rest))) {
    std::fill(rest.begin(), rest.end(), std::bit_cast<float>(std::uint32_t{0x7FC00000}));
  }
}

void unrotate(const Rotation& r, const float* y, MutView x) {
  if (scalar_forced()) return reference::unrotate(r, y, x);
  HWY_DYNAMIC_DISPATCH(Unrotate)(r, y, x);
}

}  // namespace zeropp::quant
#endif
