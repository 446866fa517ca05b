// The definition in int_block.h as plain loops.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "quant/int_block.h"
#include "quant/reference.h"

namespace zeropp::quant::reference {
namespace {

constexpr float kTiny = 0x1p-100F, kUnTiny = 0x1p100F;

/// A NaN anywhere wins; std::max would lose it.
float absmax(ConstView x) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < x.n; ++i) {
    bits = std::max(bits, std::bit_cast<std::uint32_t>(load(x, i)) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(bits);
}

struct Scale {
  float value;          ///< What the wire holds.
  float pre, mul, div;  ///< v = x * pre * mul / div; unused factors are 1, which is exact.
};

Scale block_scale(float a, float d) {
  if (a < kTiny) {
    const float s = tiny_scale(a, d);
    return {s, kUnTiny, 1.0F, s * kUnTiny};
  }
  float s = a / d;
  if (std::isinf(s * d)) s = std::nextafter(s, 0.0F);
  return {s, 1.0F, d / a, 1.0F};
}

int quantize(const IntBlockFormat& f, float v, const RoundingNoise* noise,
             std::uint64_t element) {
  const float top = static_cast<float>(f.max_q());
  if (!f.stochastic()) return static_cast<int>(std::min(top, std::nearbyintf(v)));
  const float below = std::floor(v);
  const float q = below + (noise->uniform(element) < v - below ? 1.0F : 0.0F);
  return static_cast<int>(std::clamp(q, -f.divisor(), top));
}

void put(const IntBlockFormat& f, std::byte* payload, std::size_t m, std::size_t i, int q) {
  if (f.bits == 8) {
    payload[i] = static_cast<std::byte>(q);
    return;
  }
  const std::size_t group = i / f.kGroup * f.kGroup, at = i - group;
  const std::size_t half = (std::min(f.kGroup, m - group) + 1) / 2;
  std::byte& byte = payload[group / 2 + at % half];
  const auto nibble = static_cast<std::byte>(q & 15);
  byte = at < half ? nibble : byte | nibble << 4;  // The low nibble comes first.
}

int get(const IntBlockFormat& f, const std::byte* payload, std::size_t m, std::size_t i) {
  if (f.bits == 8) return static_cast<std::int8_t>(payload[i]);
  const std::size_t group = i / f.kGroup * f.kGroup, at = i - group;
  const std::size_t half = (std::min(f.kGroup, m - group) + 1) / 2;
  const int byte = static_cast<int>(payload[group / 2 + at % half]);
  const int nibble = at < half ? byte & 15 : byte >> 4;
  return nibble < 8 ? nibble : nibble - 16;
}

}  // namespace

float tiny_scale(float a, float d) {
  const float s = (a * kUnTiny / d) * kTiny;
  return static_cast<double>(s) * d < a
             ? std::nextafter(s, std::numeric_limits<float>::infinity())
             : s;
}

void encode_block(const IntBlockFormat& f, float a, ConstView x, std::uint64_t first,
                  const RoundingNoise* noise, std::byte* scale, std::byte* payload) {
  float wire_scale = 0;
  if (!std::isfinite(a)) {
    wire_scale = std::bit_cast<float>(std::uint32_t{0x7FC00000});
    std::memset(payload, 0, f.packed(x.n));
  } else if (a == 0) {
    std::memset(payload, 0, f.packed(x.n));
  } else {
    const Scale s = block_scale(a, f.divisor());
    wire_scale = s.value;
    for (std::size_t i = 0; i < x.n; ++i) {
      const float v = load(x, i) * s.pre * s.mul / s.div;
      put(f, payload, x.n, i, quantize(f, v, noise, first + i));
    }
  }
  std::memcpy(scale, &wire_scale, sizeof wire_scale);
}

void encode_blocks(const IntBlockFormat& f, ConstView x, const RoundingNoise* noise,
                   std::byte* wire) {
  const std::uint64_t blocks = f.blocks(x.n);
  for (std::uint64_t k = 0; k < blocks; ++k) {
    const std::size_t first = k * f.block, m = std::min(f.block, x.n - first);
    const ConstView block = x.slice(first, m);
    encode_block(f, absmax(block), block, first, noise, wire + k * f.kScaleBytes,
                 wire + f.payload_offset(x.n, k));
  }
}

void decode_blocks(const IntBlockFormat& f, const std::byte* wire, MutView out) {
  const std::uint64_t blocks = f.blocks(out.n);
  for (std::uint64_t k = 0; k < blocks; ++k) {
    const std::size_t first = k * f.block, m = std::min(f.block, out.n - first);
    float scale;
    std::memcpy(&scale, wire + k * f.kScaleBytes, sizeof scale);
    const std::byte* payload = wire + f.payload_offset(out.n, k);
    for (std::size_t i = 0; i < m; ++i) {
      store(out, first + i, static_cast<float>(get(f, payload, m, i)) * scale);
    }
  }
}

void decode_add_blocks(const IntBlockFormat& f, const std::byte* wire, std::span<float> sum) {
  std::vector<float> x(sum.size());
  reference::decode_blocks(f, wire, mut_view(x));
  reference::accumulate(mut_view(sum), view(x));
}

void decode_sum_blocks(const IntBlockFormat& f, WireList wires, float divisor, MutView out) {
  std::vector<float> sum(out.n);
  reference::decode_blocks(f, wires[0].data(), mut_view(sum));
  for (const auto& wire : wires.subspan(1)) reference::decode_add_blocks(f, wire.data(), sum);
  reference::divide(view(sum), divisor, out);
}

void reduce_encode_blocks(const IntBlockFormat& from, WireList wires, std::size_t n,
                          float divisor, const IntBlockFormat& to, const RoundingNoise* noise,
                          std::byte* wire) {
  std::vector<float> sum(n);
  reference::decode_sum_blocks(from, wires, divisor, mut_view(sum));
  reference::encode_blocks(to, view(sum), noise, wire);
}

}  // namespace zeropp::quant::reference
