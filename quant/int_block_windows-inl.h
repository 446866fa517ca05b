// Encoding whole windows of integer blocks: while one is encoded, the largest magnitudes of the
// one after the next are found, so that loads, divisions and stores overlap. See int_block.h
// for the bytes. Included once per instruction set.

#if defined(ZEROPP_QUANT_INT_BLOCK_WINDOWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_INT_BLOCK_WINDOWS_INL_H_
#undef ZEROPP_QUANT_INT_BLOCK_WINDOWS_INL_H_
#else
#define ZEROPP_QUANT_INT_BLOCK_WINDOWS_INL_H_
#endif

#include "quant/int_block_encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

/// Numbers of a window: a tile for each lane of a vector, 8 KiB of fp32 with 512-bit vectors.
constexpr std::size_t kWindow = kLanes * kTile;

/// True if blocks are whole tiles and a window is whole blocks.
HWY_INLINE bool fits_windows(const IntBlockFormat& f) {
  return f.block % kTile == 0 && kWindow % f.block == 0;
}

/// What lies beyond the window whose maxima are found, in bytes: memory takes that long.
constexpr std::size_t kFetchAhead = 4096;

template <Dtype kType>
HWY_INLINE void tile_maxima(const std::byte* x, std::size_t t, VI (&lanes)[kLanes]) {
  constexpr std::size_t kBytes = kTile * size_of(kType);
  const std::byte* tile = x + t * kBytes;
  for (std::size_t line = 0; line < kBytes; line += 64) {
    hwy::Prefetch(tile + kFetchAhead + line);
  }
  lanes[t] = absmax_lanes<kType>(tile, std::integral_constant<std::size_t, kTile>());
}

/// From one maximum a tile to one a block.
HWY_INLINE void join_tiles(const Encoder& e, VI (&lanes)[kLanes], FewBlocks& few) {
  const std::size_t tiles = few.m / kTile;
  if (tiles > 1) {
    for (std::size_t b = 0; b < few.count; ++b) {
      VI a = lanes[b * tiles];
      for (std::size_t t = 1; t < tiles; ++t) a = hn::Max(a, lanes[b * tiles + t]);
      lanes[b] = a;
    }
  }
  find_scales(e, lanes, few);
}

/// Encodes `few`, all ordinary, and finds the maxima at `ahead`.
template <Dtype kType, int kBits, Mode kMode>
HWY_INLINE void encode_and_find(const Encoder& e, const FewBlocks& few, const std::byte* ahead,
                                VI (&lanes)[kLanes]) {
  const std::size_t shift = hwy::Num0BitsBelowLS1Bit_Nonzero64(few.m / kTile);
  for (std::size_t t = 0; t < kLanes; ++t) {
    encode_tile<kType, kBits, kMode>(e, hn::Set(DF(), few.factors[t >> shift]),
                                     few.x + t * kTile * size_of(kType), nullptr, 0,
                                     few.payload + t * (kTile * kBits / 8));
    tile_maxima<kType>(ahead, t, lanes);
  }
}

/// `windows` of a format that fits them, without noise.
template <Dtype kType, int kBits, Mode kMode>
HWY_INLINE void encode_windows(const Encoder& e, const std::byte* x, std::size_t windows,
                               std::byte* scales, std::byte* payload) {
  static_assert(kMode != Mode::kStochastic);
  constexpr std::size_t kBytes = kWindow * size_of(kType);
  constexpr std::size_t kAhead = 2;
  FewBlocks ring[kAhead + 1];
  VI lanes[kLanes];
  const auto enter = [&](std::size_t w) -> FewBlocks& {
    FewBlocks& few = ring[w % (kAhead + 1)];
    few.m = e.f.block;
    few.count = kWindow / few.m;
    few.first = w * kWindow;
    few.x = x + w * kBytes;
    few.scales = scales + w * few.count * IntBlockFormat::kScaleBytes;
    few.payload = payload + w * (kWindow * kBits / 8);
    return few;
  };
  const auto find = [&](std::size_t w) {
    for (std::size_t t = 0; t < kLanes; ++t) tile_maxima<kType>(x + w * kBytes, t, lanes);
  };
  for (std::size_t w = 0; w < std::min(kAhead, windows); ++w) {
    find(w);
    join_tiles(e, lanes, enter(w));
  }
  for (std::size_t w = 0; w < windows; ++w) {
    const FewBlocks& few = ring[w % (kAhead + 1)];
    const bool more = w + kAhead < windows;
    if (more && HWY_LIKELY(few.all_ordinary)) {
      encode_and_find<kType, kBits, kMode>(e, few, x + (w + kAhead) * kBytes, lanes);
    } else {
      if (more) find(w + kAhead);
      encode_few<kType, kBits, kMode>(e, few, 0);
    }
    if (more) join_tiles(e, lanes, enter(w + kAhead));
  }
}

/// A span from its first number on.
template <Dtype kType, int kBits, Mode kMode>
HWY_INLINE void encode_span(const Encoder& e, const std::byte* x, std::size_t n,
                            std::byte* wire) {
  std::byte *scales = wire, *payload = wire + e.f.payload_offset(n, 0);
  std::size_t done = 0;
  if constexpr (kMode != Mode::kStochastic) {
    // 8-bit blocks are as long as a window by default, and faster with encode_large.
    if (kBits == 4 && fits_windows(e.f) && n >= 4 * kWindow) {
      const std::size_t windows = n / kWindow;
      encode_windows<kType, kBits, kMode>(e, x, windows, scales, payload);
      done = windows * kWindow;
    }
  }
  if (done == n) return;
  encode_all<kType, kBits, kMode>(e, x + done * size_of(kType), n - done, done,
                                  scales + done / e.f.block * IntBlockFormat::kScaleBytes,
                                  payload + done * kBits / 8);
}

#endif  // ZEROPP_SIMD
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_INT_BLOCK_WINDOWS_INL_H_
