// Codes, a byte each, to the bit planes of block_layout.h and back, many bytes at a time.
// Included once per instruction set.

#if defined(ZEROPP_QUANT_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_PLANES_INL_H_
#undef ZEROPP_QUANT_PLANES_INL_H_
#else
#define ZEROPP_QUANT_PLANES_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "quant/block_layout.h"
#include "quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

/// Codes are made and packed a tile at a time, so that stores have reached the cache before
/// wider loads follow.
constexpr std::size_t kCodeTile = 4096;
constexpr std::size_t kCodeRoom = kCodeTile + 64;  ///< Whole vectors may be written at the end.

/// Shifts bytes whose result stays inside them; left where kBy > 0.
template <int kBy, class V>
HWY_INLINE V shift_bytes(V v) {
  const hn::DFromV<V> d8;
  const hn::Repartition<std::uint16_t, decltype(d8)> d16;
  if constexpr (kBy > 0) {
    return hn::BitCast(d8, hn::ShiftLeft<kBy>(hn::BitCast(d16, v)));
  } else if constexpr (kBy < 0) {
    return hn::BitCast(d8, hn::ShiftRight<-kBy>(hn::BitCast(d16, v)));
  } else {
    return v;
  }
}

/// Bytes of a plane of kW bits, taken from bit kShift of codes that lie kH apart.
template <int kW, int kShift, std::size_t kH, std::size_t kT, class D>
HWY_INLINE hn::Vec<D> plane_bytes(D d, const std::uint8_t* codes) {
  const auto mask = hn::Set(d, static_cast<std::uint8_t>(((1 << kW) - 1) << kShift));
  const auto part = shift_bytes<kW* static_cast<int>(kT) - kShift>(
      hn::And(hn::LoadU(d, codes + kT * kH), mask));
  if constexpr ((kT + 1) * kW < 8) {
    return hn::Or(part, plane_bytes<kW, kShift, kH, kT + 1>(d, codes));
  } else {
    return part;
  }
}

template <int kW, int kShift, std::size_t kM>
HWY_INLINE std::byte* pack_plane(const std::uint8_t* codes, std::byte* out) {
  constexpr std::size_t kH = kM * kW / 8;
  const hn::CappedTag<std::uint8_t, kH> d;
  for (std::size_t j = 0; j < kH; j += hn::MaxLanes(d)) {
    hn::StoreU(plane_bytes<kW, kShift, kH, 0>(d, codes + j), d,
               reinterpret_cast<std::uint8_t*>(out + j));
  }
  return out + kH;
}

template <int kW, int kShift, std::size_t kH, std::size_t kT, class D>
HWY_INLINE void spread_bytes(D d, hn::Vec<D> plane, std::uint8_t* codes) {
  const auto mask =
      hn::Set(d, static_cast<std::uint8_t>(((1 << kW) - 1) << (kW * static_cast<int>(kT))));
  auto part = shift_bytes<kShift - kW* static_cast<int>(kT)>(hn::And(plane, mask));
  if constexpr (kShift != 0) part = hn::Or(part, hn::LoadU(d, codes + kT * kH));
  hn::StoreU(part, d, codes + kT * kH);
  if constexpr ((kT + 1) * kW < 8) spread_bytes<kW, kShift, kH, kT + 1>(d, plane, codes);
}

template <int kW, int kShift, std::size_t kM>
HWY_INLINE const std::byte* unpack_plane(const std::byte* in, std::uint8_t* codes) {
  constexpr std::size_t kH = kM * kW / 8;
  const hn::CappedTag<std::uint8_t, kH> d;
  for (std::size_t j = 0; j < kH; j += hn::MaxLanes(d)) {
    const auto plane = hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(in + j));
    spread_bytes<kW, kShift, kH, 0>(d, plane, codes + j);
  }
  return in + kH;
}

/// A group of kM codes, a multiple of 16.
template <int kBits, std::size_t kM>
HWY_INLINE void pack_whole(const std::uint8_t* codes, std::byte* out) {
  if constexpr ((kBits & 4) != 0) out = pack_plane<4, 0, kM>(codes, out);
  if constexpr ((kBits & 2) != 0) out = pack_plane<2, kBits & 4, kM>(codes, out);
  if constexpr ((kBits & 1) != 0) pack_plane<1, kBits & 6, kM>(codes, out);
}

template <int kBits, std::size_t kM>
HWY_INLINE void unpack_whole(const std::byte* in, std::uint8_t* codes) {
  if constexpr ((kBits & 4) != 0) in = unpack_plane<4, 0, kM>(in, codes);
  if constexpr ((kBits & 2) != 0) in = unpack_plane<2, kBits & 4, kM>(in, codes);
  if constexpr ((kBits & 1) != 0) unpack_plane<1, kBits & 6, kM>(in, codes);
}

/// Calls whole(kM, first) for consecutive groups of a compile-time size and rest(m, first) for
/// others, over n codes from a block's start, or within one of more than n.
template <class Whole, class Rest>
HWY_INLINE void for_groups(std::size_t block, std::size_t n, const Whole& whole,
                           const Rest& rest) {
  constexpr std::size_t kFull = BlockLayout::kGroup;
  const auto same = [&](auto size) {
    std::size_t i = 0;
    for (; i + size() <= n; i += size()) whole(size, i);
    if (i < n) rest(n - i, i);
  };
  if (block % kFull == 0 || block >= n) {
    same(std::integral_constant<std::size_t, kFull>());
  } else if (block == 64) {
    same(std::integral_constant<std::size_t, 64>());
  } else if (block == 32) {
    same(std::integral_constant<std::size_t, 32>());
  } else if (block == 16) {
    same(std::integral_constant<std::size_t, 16>());
  } else {
    for (std::size_t first = 0; first < n; first += block) {
      const std::size_t end = std::min(n, first + block);
      for (std::size_t i = first; i < end; i += kFull) rest(std::min(kFull, end - i), i);
    }
  }
}

/// n codes to the payloads of consecutive blocks; n as for for_groups.
template <int kBits>
HWY_INLINE void pack_codes(const std::uint8_t* codes, std::size_t block, std::size_t n,
                           std::byte* out) {
  if constexpr (kBits == 8) {
    std::memcpy(out, codes, n);
  } else {
    for_groups(
        block, n,
        [&](auto size, std::size_t first) {
          pack_whole<kBits, size()>(codes + first, out);
          out += size() * kBits / 8;
        },
        [&](std::size_t m, std::size_t first) {
          alignas(64) std::uint8_t padded[BlockLayout::kGroup + 8] = {};
          std::memcpy(padded, codes + first, m);
          bit_planes::pack_group<kBits>(padded, m, out);
          out += BlockLayout::packed_group(kBits, m);
        });
  }
}

/// Zeros follow the codes, where whole vectors may be read.
template <int kBits>
HWY_INLINE void unpack_codes(const std::byte* in, std::size_t block, std::size_t n,
                             std::uint8_t* codes) {
  std::memset(codes + n, 0, kCodeRoom - kCodeTile);
  if constexpr (kBits == 8) {
    std::memcpy(codes, in, n);
  } else {
    for_groups(
        block, n,
        [&](auto size, std::size_t first) {
          unpack_whole<kBits, size()>(in, codes + first);
          in += size() * kBits / 8;
        },
        [&](std::size_t m, std::size_t first) {
          bit_planes::unpack_group<kBits>(in, m, codes + first);
          in += BlockLayout::packed_group(kBits, m);
        });
  }
}

/// Stores code(v) of m numbers; whole vectors are written.
template <class Code>
HWY_INLINE void code_run(const float* x, std::size_t m, std::uint8_t* codes, const Code& code) {
  const DF df;
  std::size_t i = 0;
  for (; i + 2 * kLanes <= m; i += 2 * kLanes) {
    store_bytes(code(hn::LoadU(df, x + i), i), code(hn::LoadU(df, x + i + kLanes), i + kLanes),
                reinterpret_cast<std::byte*>(codes + i));
  }
  for (; i < m; i += kLanes) {
    const VF v = i + kLanes <= m
                     ? hn::LoadU(df, x + i)
                     : load_some<Dtype::kF32>(reinterpret_cast<const std::byte*>(x + i), m - i);
    store_bytes(code(v, i), reinterpret_cast<std::byte*>(codes + i));
  }
}

/// out = value(code), or out += value(code), of m codes; whole vectors are read.
template <bool kAdd, class Value>
HWY_INLINE void value_run(const std::uint8_t* codes, std::size_t m, float* out,
                          const Value& value) {
  std::size_t i = 0;
  for (; i + kLanes <= m; i += kLanes) {
    VF v = value(load_bytes(codes + i));
    if constexpr (kAdd) v = canonical(hn::Add(hn::LoadU(DF(), out + i), v));
    hn::StoreU(v, DF(), out + i);
  }
  if (i == m) return;
  auto* at = reinterpret_cast<std::byte*>(out + i);
  VF v = value(load_bytes(codes + i));
  if constexpr (kAdd) v = canonical(hn::Add(load_some<Dtype::kF32>(at, m - i), v));
  store_some<Dtype::kF32>(v, at, m - i);
}

#endif  // ZEROPP_SIMD
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_PLANES_INL_H_
