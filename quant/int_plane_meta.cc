// Steps and minima of integer blocks, rounded to their format in a given direction.

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/convert.h"
#include "quant/float_formats.h"
#include "quant/int_plane_codec.h"

namespace zeropp::quant {
namespace {

/// Code of the least number of a 16- or 32-bit float format that is not below v >= 0; the
/// largest finite one if there is none.
std::uint32_t code_above(MetaFormat m, double v) {
  const float f = static_cast<float>(std::min(v, double{FLT_MAX}));
  const auto value = [m](std::uint32_t code) -> double {
    if (m == MetaFormat::kFp32) return std::bit_cast<float>(code);
    const auto half = static_cast<std::uint16_t>(code);
    return m == MetaFormat::kFp16 ? from_f16_bits(half) : from_bf16_bits(half);
  };
  const std::uint32_t top = m == MetaFormat::kFp32   ? 0x7F7FFFFF
                            : m == MetaFormat::kFp16 ? 0x7BFF
                                                     : 0x7F7F;
  std::uint32_t code = m == MetaFormat::kFp32   ? std::bit_cast<std::uint32_t>(f)
                       : m == MetaFormat::kFp16 ? f16_bits(f)
                                                : bf16_bits(f);
  code = std::min(code, top);
  if (value(code) < v && code < top) ++code;
  return code;
}

/// The largest number not above v, with its sign.
std::uint32_t code_below(MetaFormat m, float v) {
  const std::uint32_t sign = m == MetaFormat::kFp32 ? 0x80000000 : 0x8000;
  if (v == 0) return 0;
  if (v < 0) return code_above(m, -double{v}) | sign;
  const std::uint32_t code = code_above(m, v);
  float up;
  const auto half = static_cast<std::uint16_t>(code);
  if (m == MetaFormat::kFp32) return code;  // v itself.
  up = m == MetaFormat::kFp16 ? from_f16_bits(half) : from_bf16_bits(half);
  return up > v ? code - 1 : code;
}

/// Byte of the least power of two that is not below v > 0.
std::uint32_t e8m0_above(double v) {
  int e = std::ilogb(v);
  if (std::ldexp(1.0, e) < v) ++e;
  return static_cast<std::uint32_t>(std::clamp(e, -127, 127) + 127);
}

float read(MetaFormat m, const std::byte* from) {
  if (m == MetaFormat::kE8M0) return from_e8m0(static_cast<std::uint8_t>(*from));
  if (m == MetaFormat::kFp32) {
    float v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  std::uint16_t half;
  std::memcpy(&half, from, sizeof half);
  return m == MetaFormat::kFp16 ? from_f16_bits(half) : from_bf16_bits(half);
}

void write(MetaFormat m, std::uint32_t code, std::byte* to) {
  std::memcpy(to, &code, meta_size(m));  // Little-endian.
}

std::uint32_t nan_code(MetaFormat m) {
  switch (m) {
    case MetaFormat::kFp32:
      return 0x7FC00000;
    case MetaFormat::kFp16:
      return 0x7E00;
    case MetaFormat::kBf16:
      return 0x7FC0;
    case MetaFormat::kE8M0:
      break;
  }
  return 255;
}

}  // namespace

std::size_t meta_size(MetaFormat m) {
  return m == MetaFormat::kFp32 ? 4 : m == MetaFormat::kE8M0 ? 1 : 2;
}

MetaFormat min_format(MetaFormat scale) {
  return scale == MetaFormat::kE8M0 ? MetaFormat::kBf16 : scale;
}

BlockLayout IntPlaneFormat::layout() const {
  const std::size_t meta =
      meta_size(scale) + (asymmetric ? meta_size(min_format(scale)) : std::size_t{0});
  return {.bits = bits, .block = block, .block_bytes = meta};
}

IntFactors write_int_meta(const IntPlaneFormat& f, IntRange x, double shift, std::byte* meta) {
  const MetaFormat zf = min_format(f.scale);
  std::memset(meta, 0, f.layout().block_bytes);
  IntFactors by;
  if (!x.finite) {
    write(f.scale, nan_code(f.scale), meta);
    return by;
  }
  const float top = std::max(std::fabs(x.min), std::fabs(x.max));
  float z = 0;
  if (f.asymmetric) {
    std::byte* at = meta + meta_size(f.scale);
    write(zf, code_below(zf, x.min), at);
    z = read(zf, at);
  }
  const double range = f.asymmetric ? double{x.max} - z : double{top};
  if (!(range > 0)) return by;
  const double levels = f.divisor() - (f.rounding == Rounding::kShift ? 1.0F : 0.0F);
  const double step = range / levels;
  write(f.scale, f.scale == MetaFormat::kE8M0 ? e8m0_above(step) : code_above(f.scale, step),
        meta);
  const float s = read(f.scale, meta);
  if (f.rounding == Rounding::kShift) {
    // Not below -FLT_MAX: then the shift is less, and what is sent is still near.
    const double low = std::max(double{x.min} - shift * s, -double{FLT_MAX});
    z = static_cast<float>(low);
    if (z > low) z = std::nextafter(z, -std::numeric_limits<float>::infinity());
    std::memcpy(meta + meta_size(f.scale), &z, sizeof z);
  }
  by.zero = false;
  by.pre = top < 0x1p-60F ? 0x1p100F : top >= 0x1p126F ? 0.25F : 1.0F;
  by.offset = z * by.pre;
  by.mul = static_cast<float>(1 / (double{s} * by.pre));
  by.low = f.asymmetric ? 0 : -f.divisor();
  by.high = static_cast<float>(f.highest());
  return by;
}

IntMeta read_int_meta(const IntPlaneFormat& f, const std::byte* meta) {
  IntMeta m{read(f.scale, meta), 0, 1};
  if (f.asymmetric) m.min = read(min_format(f.scale), meta + meta_size(f.scale));
  const double top = std::fabs(double{m.min}) + std::fabs(double{m.step}) * (1 << f.bits);
  if (top >= 0x1p126) {
    m.step *= 0.25F;
    m.min *= 0.25F;
    m.post = 4;
  }
  return m;
}

}  // namespace zeropp::quant
