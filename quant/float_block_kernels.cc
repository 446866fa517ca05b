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
#include "quant/planes-inl.h"
#include "quant/range-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

/// Codes of m numbers; whole vectors are written.
template <class F>
HWY_INLINE void quantize(const float* x, std::size_t m, BlockFactors by, std::uint8_t* codes) {
  const DF df;
  if (by.zero) {
    std::memset(codes, F::kZero, m);
    return;
  }
  const VF pre = hn::Set(df, by.pre), mul = hn::Set(df, by.mul);
  const auto code = [&](VF v) { return encode_codes<F>(hn::Mul(hn::Mul(v, pre), mul)); };
  std::size_t i = 0;
  for (; i + kLanes <= m; i += kLanes) store_codes(code(hn::LoadU(df, x + i)), codes + i);
  if (i == m) return;
  store_codes(code(load_some<Dtype::kF32>(reinterpret_cast<const std::byte*>(x + i), m - i)),
              codes + i);
}

/// Factors of `count` <= kLanes blocks side by side, or each would wait for its divisions.
/// `ordinary` where they hold; write_scale decides the rest.
struct FewFactors {
  alignas(64) float maxima[kLanes];
  alignas(64) float mul[kLanes];
  alignas(64) float scale[kLanes];         ///< kFp32.
  alignas(64) std::uint32_t byte[kLanes];  ///< kE8M0.
};

HWY_INLINE bool ordinary(BlockScaleKind kind, float a) {
  return kind == BlockScaleKind::kFp32 ? a >= 0x1p-100F && a < 0x1p120F : a > 0 && a <= FLT_MAX;
}

template <class F>
HWY_INLINE void find_factors(BlockScaleKind kind, FewFactors& few) {
  const DF df;
  const VF a = hn::Load(df, few.maxima);
  if (kind == BlockScaleKind::kFp32) {
    const VF d = hn::Set(df, F::kMax);
    hn::Store(hn::Div(a, d), df, few.scale);
    hn::Store(hn::Div(d, a), df, few.mul);
    return;
  }
  if constexpr (!std::is_same_v<F, Nf4>) {
    // The byte e + 127, and 2^-e.
    const VI exponent = hn::BitCast(DI(), hn::ShiftRight<23>(hn::BitCast(DU(), a)));
    const VI byte = hn::Max(hn::Zero(DI()), hn::Sub(exponent, hn::Set(DI(), F::kEmax)));
    hn::Store(hn::BitCast(DU(), byte), DU(), few.byte);
    const VI inverse = hn::ShiftLeft<23>(hn::Sub(hn::Set(DI(), 254), byte));
    hn::Store(hn::BitCast(df, inverse), df, few.mul);
  }
}

template <class F>
HWY_INLINE void encode_blocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                              std::byte* scales, std::byte* payload) {
  const std::size_t scale_bytes = f.layout().block_bytes;
  alignas(64) std::uint8_t codes[kCodeRoom];
  FewFactors few;
  for (std::size_t first = 0; first < n;) {
    std::size_t count = 0, end = first;
    hn::Store(hn::Set(DF(), 1.0F), DF(), few.maxima);
    for (; count < kLanes && end < n; ++count) {
      const std::size_t m = std::min(f.block, n - end);
      few.maxima[count] = absmax(x + end, m);
      end += m;
    }
    find_factors<F>(f.scale, few);
    for (std::size_t b = 0; b < count; ++b, first += f.block, scales += scale_bytes) {
      const std::size_t m = std::min(f.block, n - first);
      BlockFactors by{1, few.mul[b], false};
      if (HWY_UNLIKELY(!ordinary(f.scale, few.maxima[b]))) {
        by = write_scale(f, few.maxima[b], scales);
      } else if (f.scale == BlockScaleKind::kFp32) {
        std::memcpy(scales, few.scale + b, sizeof(float));
      } else {
        *scales = static_cast<std::byte>(few.byte[b]);
      }
      quantize<F>(x + first, m, by, codes + first);
    }
    first = end;
  }
  pack_codes<F::kBits>(codes, f.block, n, payload);
}

float AbsmaxOf(const float* x, std::size_t n) { return absmax(x, n); }

void EncodeFloatRun(Element e, const float* x, std::size_t n, BlockFactors by, std::byte* out) {
  with_element(e, [&](auto format) {
    using F = decltype(format);
    alignas(64) std::uint8_t codes[kCodeRoom];
    quantize<F>(x, n, by, codes);
    pack_codes<F::kBits>(codes, n, n, out);
  });
}

void EncodeFloatBlocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                       std::byte* scales, std::byte* payload) {
  with_element(f.element,
               [&](auto format) { encode_blocks<decltype(format)>(f, x, n, scales, payload); });
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

/// out = values, or out += values.
template <bool kAdd>
HWY_INLINE void put_values(VF v, float* out) {
  if constexpr (kAdd) v = canonical(hn::Add(hn::LoadU(DF(), out), v));
  hn::StoreU(v, DF(), out);
}

template <bool kAdd>
HWY_INLINE void put_some(VF v, float* out, std::size_t m) {
  auto* at = reinterpret_cast<std::byte*>(out);
  if constexpr (kAdd) v = canonical(hn::Add(load_some<Dtype::kF32>(at, m), v));
  store_some<Dtype::kF32>(v, at, m);
}

template <class F, bool kAdd>
HWY_INLINE void decode_blocks(const FloatBlockFormat& f, const std::byte* scales,
                              const std::byte* payload, std::size_t n, float* out) {
  const std::size_t scale_bytes = f.layout().block_bytes;
  alignas(64) std::uint8_t codes[kCodeRoom];
  unpack_codes<F::kBits>(payload, f.block, n, codes);
  for (std::size_t first = 0; first < n; scales += scale_bytes) {
    const std::size_t end = n - first < f.block ? n : first + f.block;
    const Values<F> values(read_scale(f, scales));
    for (; first + kLanes <= end; first += kLanes) {
      put_values<kAdd>(values(load_codes(codes + first)), out + first);
    }
    if (first == end) continue;
    put_some<kAdd>(values(load_codes(codes + first)), out + first, end - first);
    first = end;
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
void EncodeFloatRun(Element e, const float* x, std::size_t n, BlockFactors by, std::byte* out) {
  reference::encode_float_run(e, x, n, by, out);
}
void EncodeFloatBlocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                       std::byte* scales, std::byte* payload) {
  reference::encode_float_blocks(f, x, n, scales, payload);
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
                      std::byte* out) {
  if (scalar_forced()) return reference::encode_float_run(e, x, n, by, out);
  HWY_DYNAMIC_DISPATCH(EncodeFloatRun)(e, x, n, by, out);
}

void encode_float_blocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                         std::byte* scales, std::byte* payload) {
  if (scalar_forced()) return reference::encode_float_blocks(f, x, n, scales, payload);
  HWY_DYNAMIC_DISPATCH(EncodeFloatBlocks)(f, x, n, scales, payload);
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
