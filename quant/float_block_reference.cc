// The definitions in float_block.h as plain loops, and the scale of a block.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/float_block.h"
#include "quant/reference.h"

namespace zeropp::quant {
namespace {

constexpr float kTiny = 0x1p-100F, kUnTiny = 0x1p100F;

float largest(Element e) {
  float max = 0;
  with_element(e, [&](auto format) { max = decltype(format)::kMax; });
  return max;
}

int emax(Element e) { return std::ilogb(largest(e)); }

}  // namespace

BlockLayout FloatBlockFormat::layout() const {
  BlockLayout l{.block = block, .block_bytes = scale == BlockScaleKind::kFp32 ? 4U : 1U};
  with_element(element, [&](auto format) { l.bits = decltype(format)::kBits; });
  return l;
}

BlockFactors write_scale(const FloatBlockFormat& f, float a, std::byte* to) {
  const bool finite = std::isfinite(a);
  BlockFactors by;
  by.zero = !finite || a == 0;
  if (f.scale == BlockScaleKind::kE8M0) {
    // Subnormals read as exponent -127 here, which the clamp covers.
    const int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(a) >> 23) - 127;
    int e = std::max(-127, exponent - emax(f.element));
    if (f.stochastic && finite && e + emax(f.element) < 127 &&
        std::ldexp(a, -e) > largest(f.element)) {
      ++e;
    }
    *to = static_cast<std::byte>(!finite ? 255 : a == 0 ? 0 : e + 127);
    by.mul = std::ldexp(1.0F, -e);
    return by;
  }
  const float d = largest(f.element);
  float scale = 0;
  if (!finite) {
    scale = std::bit_cast<float>(0x7FC00000U);
  } else if (a != 0 && a < kTiny) {
    scale = (a * kUnTiny / d) * kTiny;
    if (static_cast<double>(scale) * d < a) {
      scale = std::nextafter(scale, std::numeric_limits<float>::infinity());
    }
    by.pre = kUnTiny;
    by.mul = 1 / (scale * kUnTiny);
  } else if (a != 0) {
    scale = a / d;
    if (std::isinf(scale * d)) scale = std::nextafter(scale, 0.0F);
    by.mul = d / a;
  }
  std::memcpy(to, &scale, sizeof scale);
  return by;
}

float read_scale(const FloatBlockFormat& f, const std::byte* from) {
  if (f.scale == BlockScaleKind::kE8M0) return from_e8m0(static_cast<std::uint8_t>(*from));
  float scale;
  std::memcpy(&scale, from, sizeof scale);
  return scale;
}

namespace reference {

float absmax_of(const float* x, std::size_t n) {
  std::uint32_t top = 0;
  for (std::size_t i = 0; i < n; ++i) {
    top = std::max(top, std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(top);
}

void encode_float_run(Element e, const float* x, std::size_t n, BlockFactors by,
                      std::uint64_t first, const RoundingNoise* noise, std::byte* out) {
  with_element(e, [&](auto format) {
    std::memset(out, 0, BlockLayout{.bits = format.kBits}.packed(n));
    for (std::size_t i = 0; i < n; ++i) {
      const float v = x[i] * by.pre * by.mul;
      const int code = by.zero            ? format.kZero
                       : noise == nullptr ? format.encode(v)
                                          : format.encode(v, noise->uniform(first + i));
      bit_planes::put(format.kBits, out, n, i, code);
    }
  });
}

void encode_float_blocks(const FloatBlockFormat& f, const float* x, std::size_t n,
                         std::uint64_t begin, const RoundingNoise* noise, std::byte* scales,
                         std::byte* payload) {
  const BlockLayout l = f.layout();
  for (std::size_t first = 0; first < n; first += l.block) {
    const std::size_t m = std::min(l.block, n - first);
    const BlockFactors by = write_scale(f, reference::absmax_of(x + first, m), scales);
    reference::encode_float_run(f.element, x + first, m, by, begin + first, noise, payload);
    scales += l.block_bytes;
    payload += l.packed(m);
  }
}

void decode_float_blocks(const FloatBlockFormat& f, const std::byte* scales,
                         const std::byte* payload, std::size_t n, bool add, float* out) {
  const BlockLayout l = f.layout();
  for (std::size_t first = 0; first < n; first += l.block) {
    const std::size_t m = std::min(l.block, n - first);
    const float scale = read_scale(f, scales);
    with_element(f.element, [&](auto format) {
      for (std::size_t i = 0; i < m; ++i) {
        const std::uint8_t code = bit_planes::get(l.bits, payload, m, i);
        const float y = canonical(format.decode(code) * scale);
        out[first + i] = add ? canonical(out[first + i] + y) : y;
      }
    });
    scales += l.block_bytes;
    payload += l.packed(m);
  }
}

}  // namespace reference
}  // namespace zeropp::quant
