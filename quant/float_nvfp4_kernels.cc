// Loops that the compiler vectorises, once per instruction set.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/float_nvfp4_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "quant/float_formats.h"
#include "quant/float_nvfp4.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {

constexpr std::size_t kSixteen = kNvfp4Block;

HWY_INLINE std::int32_t top_of_sixteen(const float* x) {
  std::int32_t top = 0;
  for (std::size_t i = 0; i < kSixteen; ++i) {
    const std::int32_t a = std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF;
    top = a > top ? a : top;
  }
  return top;
}

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

float Nvfp4FiniteMax(const float* x, std::size_t n) {
  std::int32_t top = 0;
  for_blocks(x, n, [&](const float* block, std::size_t) HWY_ATTR {
    const std::int32_t a = top_of_sixteen(block);
    if (a < 0x7F800000) top = a > top ? a : top;
  });
  return std::bit_cast<float>(top);
}

struct Scaled {
  std::uint8_t scale;
  double p;
};

HWY_INLINE Scaled quantize(double divisor, float t, float a, const float* x,
                           std::uint8_t* codes) {
  const std::uint8_t scale = E4M3::encode(static_cast<float>(a / (divisor * t)));
  const double p = static_cast<double>(E4M3::decode(scale)) * t;
  if (scale == 0) {
    std::memset(codes, 0, kSixteen);
    return {scale, p};
  }
  const float pre = a < 0x1p-100F ? 0x1p100F : 1.0F;
  const float mul = static_cast<float>(1 / (p * pre));
  for (std::size_t i = 0; i < kSixteen; ++i) codes[i] = E2M1::encode(x[i] * pre * mul);
  return {scale, p};
}

HWY_INLINE double error_of(double p, const float* x, std::size_t m, const std::uint8_t* codes) {
  double error = 0, squares[kSixteen];
  for (std::size_t i = 0; i < kSixteen; ++i) {
    const double d = static_cast<double>(E2M1::decode(codes[i])) * p - x[i];
    squares[i] = d * d;
  }
  for (std::size_t i = 0; i < m; ++i) error += squares[i];
  return error;
}

HWY_INLINE std::uint8_t encode_block(Nvfp4Rule rule, float t, const float* x, std::size_t m,
                                     std::uint8_t* codes) {
  const std::int32_t top = top_of_sixteen(x);
  if (top == 0 || top >= 0x7F800000) {
    std::memset(codes, 0, kSixteen);
    return top == 0 ? 0 : 0x7F;
  }
  const float a = std::bit_cast<float>(top);
  const Scaled six = quantize(6, t, a, x, codes);
  if (rule == Nvfp4Rule::kMax) return six.scale;
  alignas(16) std::uint8_t other[kSixteen];
  const Scaled four = quantize(4, t, a, x, other);
  if (!(error_of(four.p, x, m, other) < error_of(six.p, x, m, codes))) return six.scale;
  std::memcpy(codes, other, kSixteen);
  return four.scale;
}

void EncodeNvfp4Blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                       std::byte* scales, std::byte* payload) {
  for_blocks(x, n, [&](const float* block, std::size_t m) HWY_ATTR {
    alignas(16) std::uint8_t codes[kSixteen + 8] = {};
    *scales++ = static_cast<std::byte>(encode_block(rule, t, block, m, codes));
    if (m == kSixteen) {
      bit_planes::pack_group<4>(codes, std::integral_constant<std::size_t, kSixteen>(),
                                payload);
    } else {
      std::memset(codes + m, 0, kSixteen - m);  // Padding may have taken the sign of zero.
      bit_planes::pack_group<4>(codes, m, payload);
    }
    payload += kSixteen / 2;
  });
}

HWY_INLINE void decode_sixteen(const std::uint8_t* codes, double p, float* out) {
  for (std::size_t i = 0; i < kSixteen; ++i) {
    const float y = static_cast<float>(static_cast<double>(E2M1::decode(codes[i])) * p);
    out[i] = y == y ? y : std::bit_cast<float>(0x7FC00000);
  }
}

void DecodeNvfp4Blocks(float t, const std::byte* scales, const std::byte* payload,
                       std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; i += kSixteen) {
    const std::size_t m = std::min(kSixteen, n - i);
    alignas(16) std::uint8_t codes[kSixteen + 8] = {};
    const double p =
        static_cast<double>(E4M3::decode(static_cast<std::uint8_t>(*scales++))) * t;
    if (m == kSixteen) {
      bit_planes::unpack_group<4>(payload, std::integral_constant<std::size_t, kSixteen>(),
                                  codes);
      decode_sixteen(codes, p, out + i);
    } else {
      alignas(64) float values[kSixteen];
      bit_planes::unpack_group<4>(payload, m, codes);
      decode_sixteen(codes, p, values);
      std::memcpy(out + i, values, m * sizeof(float));
    }
    payload += kSixteen / 2;
  }
}

}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(Nvfp4FiniteMax);
HWY_EXPORT(EncodeNvfp4Blocks);
HWY_EXPORT(DecodeNvfp4Blocks);

float nvfp4_finite_max(const float* x, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(Nvfp4FiniteMax)(x, n);
}

void encode_nvfp4_blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                         std::byte* scales, std::byte* payload) {
  if (scalar_forced()) return reference::encode_nvfp4_blocks(rule, t, x, n, scales, payload);
  HWY_DYNAMIC_DISPATCH(EncodeNvfp4Blocks)(rule, t, x, n, scales, payload);
}

void decode_nvfp4_blocks(float t, const std::byte* scales, const std::byte* payload,
                         std::size_t n, float* out) {
  if (scalar_forced()) return reference::decode_nvfp4_blocks(t, scales, payload, n, out);
  HWY_DYNAMIC_DISPATCH(DecodeNvfp4Blocks)(t, scales, payload, n, out);
}

}  // namespace zeropp::quant
#endif
