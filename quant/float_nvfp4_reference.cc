// The definition in float_nvfp4.h as plain loops.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/float_formats.h"
#include "quant/float_nvfp4.h"
#include "quant/reference.h"

namespace zeropp::quant {

float nvfp4_span_scale(Nvfp4Rule rule, float m) {
  const float g = nvfp4_range(rule);
  if (m == 0) return 0;
  float t = m / g;
  if (m < 0x1p-100F) {
    t = (m * 0x1p100F / g) * 0x1p-100F;
    if (static_cast<double>(t) * g < m) {
      t = std::nextafter(t, std::numeric_limits<float>::infinity());
    }
  } else if (std::isinf(t * g)) {
    t = std::nextafter(t, 0.0F);
  }
  return t;
}

namespace reference {
namespace {

constexpr std::size_t kBytes = kNvfp4Block / 2;

struct Candidate {
  std::uint8_t scale = 0;
  std::uint8_t codes[kNvfp4Block] = {};
  double error = 0;
};

/// Up, unless it is nearly zero.
std::uint8_t scale_above(float s) {
  const std::uint8_t code = E4M3::encode(s);
  const bool up = code != 0 && code < E4M3::kTop && E4M3::decode(code) < s;
  return static_cast<std::uint8_t>(code + (up ? 1 : 0));
}

/// `first` is x[0]'s number in the span.
Candidate quantize(double divisor, float t, float a, const float* x, std::size_t m,
                   std::uint64_t first = 0, const RoundingNoise* noise = nullptr) {
  Candidate c;
  const float s = static_cast<float>(a / (divisor * t));
  c.scale = noise != nullptr ? scale_above(s) : E4M3::encode(s);
  const double p = double{E4M3::decode(c.scale)} * t;
  const float pre = a < 0x1p-100F ? 0x1p100F : 1.0F;
  const float mul = static_cast<float>(1 / (p * pre));
  if (c.scale == 0) {
    c.error = std::numeric_limits<double>::infinity();
    return c;
  }
  float squares[kNvfp4Block] = {};
  for (std::size_t i = 0; i < m; ++i) {
    const float v = x[i] * pre * mul;
    c.codes[i] =
        noise != nullptr ? E2M1::encode(v, noise->uniform(first + i)) : E2M1::encode(v);
    const float d = std::fabs(E2M1::decode(c.codes[i])) - std::fabs(v);
    squares[i] = d * d;
  }
  float quads[4];
  for (std::size_t j = 0; j < 4; ++j) {
    const float* q = squares + 4 * j;
    quads[j] = (q[0] + q[2]) + (q[1] + q[3]);
  }
  c.error = double{(quads[0] + quads[1]) + (quads[2] + quads[3])} * (p * p);
  return c;
}

float absmax(const float* x, std::size_t m) {
  std::uint32_t top = 0;
  for (std::size_t i = 0; i < m; ++i) {
    top = std::max(top, std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(top);
}

Candidate encode_block(Nvfp4Rule rule, float t, const float* x, std::size_t m,
                       std::uint64_t first, const RoundingNoise* noise) {
  const float a = absmax(x, m);
  if (!std::isfinite(a)) return {.scale = 0x7F};
  if (a == 0) return {};
  const Candidate six = quantize(6, t, a, x, m, first, noise);
  if (rule != Nvfp4Rule::k4Over6) return six;
  const Candidate four = quantize(4, t, a, x, m);
  return four.error < six.error ? four : six;
}

}  // namespace

float nvfp4_finite_max(const float* x, std::size_t n) {
  float max = 0;
  for (std::size_t first = 0; first < n; first += kNvfp4Block) {
    const float a = absmax(x + first, std::min(kNvfp4Block, n - first));
    if (std::isfinite(a)) max = std::max(max, a);
  }
  return max;
}

void encode_nvfp4_blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                         std::uint64_t begin, const RoundingNoise* noise, std::byte* scales,
                         std::byte* payload) {
  for (std::size_t first = 0; first < n; first += kNvfp4Block) {
    const std::size_t m = std::min(kNvfp4Block, n - first);
    const Candidate best = encode_block(rule, t, x + first, m, begin + first, noise);
    *scales++ = static_cast<std::byte>(best.scale);
    std::memset(payload, 0, (m + 1) / 2);
    for (std::size_t i = 0; i < m; ++i) bit_planes::put(4, payload, m, i, best.codes[i]);
    payload += kBytes;
  }
}

void decode_nvfp4_blocks(float t, const std::byte* scales, const std::byte* payload,
                         std::size_t n, bool add, float* out) {
  for (std::size_t first = 0; first < n; first += kNvfp4Block) {
    const std::size_t m = std::min(kNvfp4Block, n - first);
    const double p = double{E4M3::decode(static_cast<std::uint8_t>(*scales++))} * t;
    for (std::size_t i = 0; i < m; ++i) {
      const double q = E2M1::decode(bit_planes::get(4, payload, m, i));
      const float y = canonical(static_cast<float>(q * p));
      out[first + i] = add ? canonical(out[first + i] + y) : y;
    }
    payload += kBytes;
  }
}

}  // namespace reference
}  // namespace zeropp::quant
