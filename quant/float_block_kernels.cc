// Loops that the compiler vectorises, once per instruction set.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/float_block_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "quant/float_block.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {

HWY_INLINE float absmax_bits(const float* x, std::size_t n) {
  std::int32_t top = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t a = std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF;
    top = a > top ? a : top;
  }
  return std::bit_cast<float>(top);
}

template <class Format, class Size>
HWY_INLINE void encode_group(const float* x, Size m, BlockFactors by, std::byte* out) {
  constexpr std::size_t kGroup = BlockLayout::kGroup;
  alignas(64) std::uint8_t codes[kGroup + 8];
  if constexpr (std::is_same_v<Size, std::size_t>) std::memset(codes, 0, sizeof codes);
  if (by.zero) {
    for (std::size_t i = 0; i < m; ++i) codes[i] = Format::kZero;
  } else {
    for (std::size_t i = 0; i < m; ++i) codes[i] = Format::encode(x[i] * by.pre * by.mul);
  }
  bit_planes::pack_group<Format::kBits>(codes, m, out);
}

template <class Format>
HWY_INLINE void encode_run(const float* x, std::size_t n, BlockFactors by, std::byte* out) {
  constexpr std::size_t kGroup = BlockLayout::kGroup;
  for (std::size_t i = 0; i < n; i += kGroup) {
    bit_planes::with_size(std::min(kGroup, n - i), [&](auto m) HWY_ATTR {
      encode_group<Format>(x + i, m, by, out + i / 8 * Format::kBits);
    });
  }
}

template <class Format, class Size>
HWY_INLINE void decode_group(const std::byte* in, Size m, float scale, float* out) {
  alignas(64) std::uint8_t codes[BlockLayout::kGroup + 8];
  bit_planes::unpack_group<Format::kBits>(in, m, codes);
  for (std::size_t i = 0; i < m; ++i) {
    const float y = Format::decode(codes[i]) * scale;
    out[i] = y == y ? y : std::bit_cast<float>(0x7FC00000);
  }
}

template <class Format>
HWY_INLINE void decode_run(const std::byte* in, std::size_t n, float scale, float* out) {
  constexpr std::size_t kGroup = BlockLayout::kGroup;
  for (std::size_t i = 0; i < n; i += kGroup) {
    bit_planes::with_size(std::min(kGroup, n - i), [&](auto m) HWY_ATTR {
      decode_group<Format>(in + i / 8 * Format::kBits, m, scale, out + i);
    });
  }
}

float AbsmaxOf(const float* x, std::size_t n) { return absmax_bits(x, n); }

void EncodeFloatRun(Element e, const float* x, std::size_t n, BlockFactors by, std::byte* out) {
  with_element(e, [&](auto format) HWY_ATTR { encode_run<decltype(format)>(x, n, by, out); });
}

void EncodeFloatBlocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                       std::byte* scales, std::byte* payload) {
  const BlockLayout l = f.layout();
  with_element(f.element, [&](auto format) HWY_ATTR {
    for (std::size_t first = 0; first < n; first += l.block) {
      const std::size_t m = std::min(l.block, n - first);
      const BlockFactors by = write_scale(f, absmax_bits(x + first, m), scales);
      encode_run<decltype(format)>(x + first, m, by, payload);
      scales += l.block_bytes;
      payload += l.packed(m);
    }
  });
}

void DecodeFloatBlocks(const FloatBlockFormat& f, const std::byte* scales,
                       const std::byte* payload, std::size_t n, float* out) {
  const BlockLayout l = f.layout();
  with_element(f.element, [&](auto format) HWY_ATTR {
    for (std::size_t first = 0; first < n; first += l.block) {
      const std::size_t m = std::min(l.block, n - first);
      decode_run<decltype(format)>(payload, m, read_scale(f, scales), out + first);
      scales += l.block_bytes;
      payload += l.packed(m);
    }
  });
}

}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(AbsmaxOf);
HWY_EXPORT(EncodeFloatRun);
HWY_EXPORT(EncodeFloatBlocks);
HWY_EXPORT(DecodeFloatBlocks);

float absmax_of(const float* x, std::size_t n) { return HWY_DYNAMIC_DISPATCH(AbsmaxOf)(x, n); }

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
                         const std::byte* payload, std::size_t n, float* out) {
  if (scalar_forced()) return reference::decode_float_blocks(f, scales, payload, n, out);
  HWY_DYNAMIC_DISPATCH(DecodeFloatBlocks)(f, scales, payload, n, out);
}

}  // namespace zeropp::quant
#endif
