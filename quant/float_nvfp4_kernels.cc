// NVFP4 once per instruction set. See float_nvfp4.h for the bytes.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/float_nvfp4_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <algorithm>
#include <cfloat>
#include <cstring>

#include "quant/float_nvfp4.h"
#include "quant/minifloat-inl.h"
#include "quant/planes-inl.h"
#include "quant/range-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

constexpr std::size_t kSixteen = kNvfp4Block;
constexpr std::size_t kVectors = kSixteen / kLanes;  ///< Of a block.

/// Calls use(numbers, m): whole blocks where they lie, a short last one padded with zeros.
template <class Use>
HWY_INLINE void for_blocks(const float* x, std::size_t n, const Use& use) {
  std::size_t i = 0;
  for (; i + kSixteen <= n; i += kSixteen) use(x + i, kSixteen);
  if (i == n) return;
  alignas(64) float padded[kSixteen] = {};
  std::memcpy(padded, x + i, (n - i) * sizeof(float));
  use(static_cast<const float*>(padded), n - i);
}

HWY_INLINE float absmax_of_sixteen(const float* x) {
  VI top = magnitude(hn::LoadU(DF(), x));
  for (std::size_t j = 1; j < kVectors; ++j) {
    top = hn::Max(top, magnitude(hn::LoadU(DF(), x + j * kLanes)));
  }
  return max_of_lanes(top);
}

float Nvfp4FiniteMax(const float* x, std::size_t n) {
  float max = absmax(x, n);
  if (max <= FLT_MAX) return max;
  max = 0;
  for_blocks(x, n, [&](const float* block, std::size_t) {
    const float a = absmax_of_sixteen(block);
    if (a <= FLT_MAX) max = std::max(max, a);
  });
  return max;
}

/// What the scales of kLanes blocks do to their numbers.
struct Scaled {
  alignas(64) double p[kLanes];
  alignas(64) float mul[kLanes];
  alignas(64) std::uint8_t scale[kLanes];
};

/// With A = `a`, most of it in vectors of blocks.
HWY_INLINE void find_scales(double divisor, float t, VF a, VF pre, Scaled& s) {
  const VU scale = encode_codes<E4M3>(narrow(widen(a) / both(divisor * t)));
  const Doubles p = widen(decode_codes<E4M3>(scale)) * both(t);
  store_codes(scale, s.scale);
  hn::Store(p.low, DD(), s.p);
  hn::Store(p.high, DD(), s.p + kLanes / 2);
  hn::Store(narrow(both(1) / (p * widen(pre))), DF(), s.mul);
}

HWY_INLINE void quantize(const float* x, float pre, float mul, std::uint8_t* codes) {
  const VF first = hn::Set(DF(), pre), second = hn::Set(DF(), mul);
  for (std::size_t j = 0; j < kSixteen; j += kLanes) {
    const VF v = hn::Mul(hn::Mul(hn::LoadU(DF(), x + j), first), second);
    store_codes(encode_codes<E2M1>(v), codes + j);
  }
}

template <class D>
HWY_INLINE double sum_in_halves(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<D> half;
    return sum_in_halves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// Sum of (value * p - x)^2, added in halves. value * p is exact, so a fused subtraction is
/// too.
HWY_INLINE double error_of(double p, const float* x, const std::uint8_t* codes) {
  const DD dd;
  const VD by = hn::Set(dd, p);
  VD squares[2 * kVectors];
  for (std::size_t j = 0; j < kVectors; ++j) {
    const Doubles value = widen(decode_codes<E2M1>(load_codes(codes + j * kLanes)));
    const Doubles is = widen(hn::LoadU(DF(), x + j * kLanes));
    const VD low = hn::MulSub(value.low, by, is.low),
             high = hn::MulSub(value.high, by, is.high);
    squares[2 * j] = hn::Mul(low, low);
    squares[2 * j + 1] = hn::Mul(high, high);
  }
  for (std::size_t half = kVectors; half != 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) squares[i] = hn::Add(squares[i], squares[i + half]);
  }
  return sum_in_halves(dd, squares[0]);
}

/// Eight bytes of one block's codes.
HWY_INLINE void pack_sixteen(const std::uint8_t* codes, std::byte* out) {
  std::uint64_t low, high;
  std::memcpy(&low, codes, 8);
  std::memcpy(&high, codes + 8, 8);
  low |= high << 4;
  std::memcpy(out, &low, 8);
}

/// Up to kLanes blocks whose numbers lie in a row; n of them, `padded` with zeros to whole
/// blocks.
template <bool k4Over6>
HWY_INLINE void encode_few(float t, const float* x, std::size_t n, std::byte* scales,
                           std::byte* payload) {
  const DF df;
  const std::size_t count = (n + kSixteen - 1) / kSixteen;
  alignas(64) float maxima[kLanes] = {}, pre[kLanes];
  for (std::size_t b = 0; b < count; ++b) maxima[b] = absmax_of_sixteen(x + b * kSixteen);
  const VF a = hn::Load(df, maxima);
  const VF up = hn::IfThenElse(hn::Lt(a, hn::Set(df, 0x1p-100F)), hn::Set(df, 0x1p100F),
                               hn::Set(df, 1.0F));
  hn::Store(up, df, pre);
  Scaled six, four;
  find_scales(6, t, a, up, six);
  if constexpr (k4Over6) find_scales(4, t, a, up, four);
  alignas(64) std::uint8_t codes[2][kLanes * kSixteen];
  alignas(64) std::uint8_t best[kLanes];
  const auto quantized = [&](const Scaled& s, std::size_t b, std::uint8_t* to) {
    to += b * kSixteen;
    if (HWY_UNLIKELY(s.scale[b] == 0)) {
      std::memset(to, 0, kSixteen);
    } else {
      quantize(x + b * kSixteen, pre[b], s.mul[b], to);
    }
  };
  for (std::size_t b = 0; b < count; ++b) {
    best[b] = 0;
    quantized(six, b, codes[0]);
    if constexpr (k4Over6) quantized(four, b, codes[1]);
  }
  if constexpr (k4Over6) {
    for (std::size_t b = 0; b < count; ++b) {
      const std::size_t at = b * kSixteen;
      best[b] = error_of(four.p[b], x + at, codes[1] + at) <
                error_of(six.p[b], x + at, codes[0] + at);
    }
  }
  for (std::size_t b = 0; b < count; ++b, payload += kSixteen / 2) {
    std::uint8_t* chosen = codes[best[b]] + b * kSixteen;
    std::uint8_t scale = k4Over6 && best[b] != 0 ? four.scale[b] : six.scale[b];
    if (HWY_UNLIKELY(!(maxima[b] > 0 && maxima[b] <= FLT_MAX))) {
      std::memset(chosen, 0, kSixteen);
      scale = maxima[b] == 0 ? 0 : 0x7F;
    }
    scales[b] = static_cast<std::byte>(scale);
    const std::size_t m = n - b * kSixteen;
    if (HWY_LIKELY(m >= kSixteen)) {
      pack_sixteen(chosen, payload);
    } else {
      alignas(16) std::uint8_t padded[kSixteen + 8] = {};
      std::memcpy(padded, chosen, m);  // Padding may have taken the sign of zero.
      bit_planes::pack_group<4>(padded, m, payload);
    }
  }
}

template <bool k4Over6>
HWY_INLINE void encode_blocks(float t, const float* x, std::size_t n, std::byte* scales,
                              std::byte* payload) {
  constexpr std::size_t kFew = kLanes * kSixteen;
  for (std::size_t i = 0; i < n; i += kFew, scales += kLanes, payload += kFew / 2) {
    const std::size_t m = std::min(kFew, n - i);
    if (m % kSixteen == 0) {
      encode_few<k4Over6>(t, x + i, m, scales, payload);
    } else {
      alignas(64) float padded[kFew] = {};
      std::memcpy(padded, x + i, m * sizeof(float));
      encode_few<k4Over6>(t, padded, m, scales, payload);
    }
  }
}

void EncodeNvfp4Blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                       std::byte* scales, std::byte* payload) {
  rule == Nvfp4Rule::kMax ? encode_blocks<false>(t, x, n, scales, payload)
                          : encode_blocks<true>(t, x, n, scales, payload);
}

/// The 16 values of a block's codes, times p.
class BlockValues {
 public:
  explicit HWY_INLINE BlockValues(double p) : p_(p) {
    if constexpr (kTable) table_ = product(hn::Iota(DU(), 0));
  }
  HWY_INLINE VF operator()(VU code) const {
    if constexpr (kTable) {
      return hn::TableLookupLanes(table_, hn::IndicesFromVec(DF(), code));
    } else {
      return product(code);
    }
  }

 private:
  static constexpr bool kTable = false;
  HWY_INLINE VF product(VU code) const {
    return canonical(narrow(widen(decode_codes<E2M1>(code)) * both(p_)));
  }
  double p_;
  VF table_;
};

template <bool kAdd>
HWY_INLINE void decode_blocks(float t, const std::byte* scales, const std::byte* payload,
                              std::size_t n, float* out) {
  alignas(64) std::uint8_t codes[kCodeRoom];
  unpack_codes<4>(payload, kSixteen, n, codes);
  alignas(64) std::uint8_t some_scales[kLanes] = {};
  alignas(64) double p[kLanes];
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(scales);
  for (std::size_t first = 0; first < n; first += kLanes * kSixteen, bytes += kLanes) {
    const std::size_t m = std::min(kLanes * kSixteen, n - first);
    std::memcpy(some_scales, bytes, (m + kSixteen - 1) / kSixteen);
    const Doubles scale = widen(decode_codes<E4M3>(load_codes(some_scales))) * both(t);
    hn::Store(scale.low, DD(), p);
    hn::Store(scale.high, DD(), p + kLanes / 2);
    for (std::size_t i = 0; i < m; i += kLanes) {
      const BlockValues values(p[i / kSixteen]);
      float* to = out + first + i;
      VF v = values(load_codes(codes + first + i));
      if (HWY_LIKELY(i + kLanes <= m)) {
        if constexpr (kAdd) v = canonical(hn::Add(hn::LoadU(DF(), to), v));
        hn::StoreU(v, DF(), to);
      } else {
        auto* at = reinterpret_cast<std::byte*>(to);
        if constexpr (kAdd) v = canonical(hn::Add(load_some<Dtype::kF32>(at, m - i), v));
        store_some<Dtype::kF32>(v, at, m - i);
      }
    }
  }
}

void DecodeNvfp4Blocks(float t, const std::byte* scales, const std::byte* payload,
                       std::size_t n, bool add, float* out) {
  add ? decode_blocks<true>(t, scales, payload, n, out)
      : decode_blocks<false>(t, scales, payload, n, out);
}

#else

float Nvfp4FiniteMax(const float* x, std::size_t n) {
  return reference::nvfp4_finite_max(x, n);
}
void EncodeNvfp4Blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                       std::byte* scales, std::byte* payload) {
  reference::encode_nvfp4_blocks(rule, t, x, n, scales, payload);
}
void DecodeNvfp4Blocks(float t, const std::byte* scales, const std::byte* payload,
                       std::size_t n, bool add, float* out) {
  reference::decode_nvfp4_blocks(t, scales, payload, n, add, out);
}

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(Nvfp4FiniteMax);
HWY_EXPORT(EncodeNvfp4Blocks);
HWY_EXPORT(DecodeNvfp4Blocks);

float nvfp4_finite_max(const float* x, std::size_t n) {
  if (scalar_forced()) return reference::nvfp4_finite_max(x, n);
  return HWY_DYNAMIC_DISPATCH(Nvfp4FiniteMax)(x, n);
}

void encode_nvfp4_blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                         std::byte* scales, std::byte* payload) {
  if (scalar_forced()) return reference::encode_nvfp4_blocks(rule, t, x, n, scales, payload);
  HWY_DYNAMIC_DISPATCH(EncodeNvfp4Blocks)(rule, t, x, n, scales, payload);
}

void decode_nvfp4_blocks(float t, const std::byte* scales, const std::byte* payload,
                         std::size_t n, bool add, float* out) {
  if (scalar_forced()) {
    return reference::decode_nvfp4_blocks(t, scales, payload, n, add, out);
  }
  HWY_DYNAMIC_DISPATCH(DecodeNvfp4Blocks)(t, scales, payload, n, add, out);
}

}  // namespace zeropp::quant
#endif
