// Blocks of small floats, once per instruction set. See float_block.h for the bytes.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/float_block_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <algorithm>
#include <cfloat>
#include <cstring>

#include "quant/float_block.h"
#include "quant/minifloat-inl.h"
#include "quant/philox-inl.h"
#include "quant/planes-inl.h"
#include "quant/range-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

/// Codes of m numbers; whole vectors are written.
template <class F>
HWY_INLINE void quantize(const float* x, std::size_t m, BlockFactors by, std::uint64_t first,
                         const RoundingNoise* noise, std::uint8_t* codes) {
  if (HWY_UNLIKELY(by.zero)) {
    std::memset(codes, F::kZero, m);
    return;
  }
  const VF mul = hn::Set(DF(), by.mul), pre = hn::Set(DF(), by.pre);
  if (noise != nullptr) {
    constexpr std::size_t kSegment = 512;
    alignas(64) std::uint32_t buffer[kNoiseSize<kSegment>];
    for (std::size_t at = 0; at < m; at += kSegment) {
      const std::size_t count = std::min(kSegment, m - at);
      const std::uint32_t* words = fill_noise(*noise, first + at, count, buffer);
      code_run(x + at, count, codes + at, [&](VF v, std::size_t i) {
        return encode_codes<F>(hn::Mul(hn::Mul(v, pre), mul), uniform(words + i));
      });
    }
  } else if (HWY_LIKELY(by.pre == 1)) {
    code_run(x, m, codes, [&](VF v, std::size_t) { return encode_codes<F>(hn::Mul(v, mul)); });
  } else {
    code_run(x, m, codes,
             [&](VF v, std::size_t) { return encode_codes<F>(hn::Mul(hn::Mul(v, pre), mul)); });
  }
}

/// Factors of blocks side by side, or each would wait for its divisions; write_scale decides
/// where they are not ordinary.
constexpr std::size_t kMany = 16 * kLanes;

struct ManyFactors {
  alignas(64) float maxima[kMany];
  alignas(64) float mul[kMany];
  alignas(64) float scale[kMany];         ///< kFp32.
  alignas(64) std::uint32_t byte[kMany];  ///< kE8M0.
};

HWY_INLINE bool ordinary(BlockScaleKind kind, float a) {
  return kind == BlockScaleKind::kFp32 ? a >= 0x1p-100F && a < 0x1p120F : a > 0 && a <= FLT_MAX;
}

template <class F>
HWY_INLINE void find_factors(BlockScaleKind kind, std::size_t at, ManyFactors& many) {
  const DF df;
  const VF a = hn::Load(df, many.maxima + at);
  if (kind == BlockScaleKind::kFp32) {
    const VF d = hn::Set(df, F::kMax);
    hn::Store(hn::Div(a, d), df, many.scale + at);
    hn::Store(hn::Div(d, a), df, many.mul + at);
    return;
  }
  if constexpr (!std::is_same_v<F, Nf4>) {
    // The byte e + 127, and 2^-e.
    const VI exponent = hn::BitCast(DI(), hn::ShiftRight<23>(hn::BitCast(DU(), a)));
    const VI byte = hn::Max(hn::Zero(DI()), hn::Sub(exponent, hn::Set(DI(), F::kEmax)));
    hn::Store(hn::BitCast(DU(), byte), DU(), many.byte + at);
    const VI inverse = hn::ShiftLeft<23>(hn::Sub(hn::Set(DI(), 254), byte));
    hn::Store(hn::BitCast(df, inverse), df, many.mul + at);
  }
}

/// Largest magnitudes of at most kMany blocks; returns how many numbers those hold.
HWY_INLINE std::size_t find_maxima(const float* x, std::size_t n, std::size_t block,
                                   float* maxima) {
  std::size_t at = 0;
  for (std::size_t first = 0; first < kMany && at < n; first += kLanes) {
    VI lanes[kLanes];
    for (std::size_t b = 0; b < kLanes; ++b) {
      const std::size_t m = std::min(block, n - at);
      lanes[b] = absmax_lanes(x + at, m);
      at += m;
    }
    hn::Store(max_of_each(lanes), DF(), maxima + first);
  }
  return at;
}

template <class F>
HWY_INLINE void encode_blocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                              std::uint64_t begin, const RoundingNoise* noise,
                              std::byte* scales, std::byte* payload) {
  const std::size_t scale_bytes = f.layout().block_bytes;
  alignas(64) std::uint8_t codes[kCodeRoom];
  ManyFactors many;
  for (std::size_t first = 0; first < n;) {
    const std::size_t end = first + find_maxima(x + first, n - first, f.block, many.maxima);
    const std::size_t count = (end - first + f.block - 1) / f.block;
    for (std::size_t b = 0; b < count; b += kLanes) find_factors<F>(f.scale, b, many);
    for (std::size_t b = 0; b < count; ++b, scales += scale_bytes) {
      const std::size_t m = std::min(f.block, n - first);
      BlockFactors by{1, many.mul[b], false};
      if (HWY_UNLIKELY(noise != nullptr || !ordinary(f.scale, many.maxima[b]))) {
        by = write_scale(f, many.maxima[b], scales);
      } else if (f.scale == BlockScaleKind::kFp32) {
        std::memcpy(scales, many.scale + b, sizeof(float));
      } else {
        *scales = static_cast<std::byte>(many.byte[b]);
      }
      quantize<F>(x + first, m, by, begin + first, noise, codes + first);
      first += m;
    }
  }
  pack_codes<F::kBits>(codes, f.block, n, payload);
}

float AbsmaxOf(const float* x, std::size_t n) { return absmax(x, n); }

void EncodeFloatRun(Element e, const float* x, std::size_t n, BlockFactors by,
                    std::uint64_t first, const RoundingNoise* noise, std::byte* out) {
  with_element(e, [&](auto format) {
    using F = decltype(format);
    alignas(64) std::uint8_t codes[kCodeRoom];
    quantize<F>(x, n, by, first, noise, codes);
    pack_codes<F::kBits>(codes, n, n, out);
  });
}

void EncodeFloatBlocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                       std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                       std::byte* payload) {
  with_element(f.element, [&](auto format) {
    encode_blocks<decltype(format)>(f, x, n, first, noise, scales, payload);
  });
}

/// Values of a block's codes: by a table of all of them times the scale, where it fits a
/// register.
template <class F>
class Values {
 public:
  explicit HWY_INLINE Values(float scale) : scale_(hn::Set(DF(), scale)) {
    if constexpr (kTable) scale_ = product(hn::Iota(DU(), 0));
  }
  HWY_INLINE VF operator()(VU code) const {
    if constexpr (kTable) {
      return hn::TableLookupLanes(scale_, hn::IndicesFromVec(DF(), code));
    } else {
      return product(code);
    }
  }

 private:
  static constexpr bool kTable = F::kBits == 4 && kLanes == 16;
  HWY_INLINE VF product(VU code) const {
    return canonical(hn::Mul(decode_codes<F>(code), scale_));
  }
  VF scale_;
};

template <class F, bool kAdd>
HWY_INLINE void decode_blocks(const FloatBlockFormat& f, const std::byte* scales,
                              const std::byte* payload, std::size_t n, float* out) {
  const std::size_t scale_bytes = f.layout().block_bytes;
  alignas(64) std::uint8_t codes[kCodeRoom];
  unpack_codes<F::kBits>(payload, f.block, n, codes);
  for (std::size_t first = 0, m = 0; first < n; first += m, scales += scale_bytes) {
    m = std::min(f.block, n - first);
    value_run<kAdd>(codes + first, m, out + first, Values<F>(read_scale(f, scales)));
  }
}

void DecodeFloatBlocks(const FloatBlockFormat& f, const std::byte* scales,
                       const std::byte* payload, std::size_t n, bool add, float* out) {
  with_element(f.element, [&](auto format) {
    add ? decode_blocks<decltype(format), true>(f, scales, payload, n, out)
        : decode_blocks<decltype(format), false>(f, scales, payload, n, out);
  });
}

#else

float AbsmaxOf(const float* x, std::size_t n) { return reference::absmax_of(x, n); }
void EncodeFloatRun(Element e, const float* x, std::size_t n, BlockFactors by,
                    std::uint64_t first, const RoundingNoise* noise, std::byte* out) {
  reference::encode_float_run(e, x, n, by, first, noise, out);
}
void EncodeFloatBlocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                       std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                       std::byte* payload) {
  reference::encode_float_blocks(f, x, n, first, noise, scales, payload);
}
void DecodeFloatBlocks(const FloatBlockFormat& f, const std::byte* scales,
                       const std::byte* payload, std::size_t n, bool add, float* out) {
  reference::decode_float_blocks(f, scales, payload, n, add, out);
}

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(AbsmaxOf);
HWY_EXPORT(EncodeFloatRun);
HWY_EXPORT(EncodeFloatBlocks);
HWY_EXPORT(DecodeFloatBlocks);

float absmax_of(const float* x, std::size_t n) {
  if (scalar_forced()) return reference::absmax_of(x, n);
  return HWY_DYNAMIC_DISPATCH(AbsmaxOf)(x, n);
}

void encode_float_run(Element e, const float* x, std::size_t n, BlockFactors by,
                      std::uint64_t first, const RoundingNoise* noise, std::byte* out) {
  if (scalar_forced()) return reference::encode_float_run(e, x, n, by, first, noise, out);
  HWY_DYNAMIC_DISPATCH(EncodeFloatRun)(e, x, n, by, first, noise, out);
}

void encode_float_blocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                         std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                         std::byte* payload) {
  if (scalar_forced())
    return reference::encode_float_blocks(f, x, n, first, noise, scales, payload);
  HWY_DYNAMIC_DISPATCH(EncodeFloatBlocks)(f, x, n, first, noise, scales, payload);
}

void decode_float_blocks(const FloatBlockFormat& f, const std::byte* scales,
                         const std::byte* payload, std::size_t n, bool add, float* out) {
  if (scalar_forced()) {
    return reference::decode_float_blocks(f, scales, payload, n, add, out);
  }
  HWY_DYNAMIC_DISPATCH(DecodeFloatBlocks)(f, scales, payload, n, add, out);
}

}  // namespace zeropp::quant
#endif
