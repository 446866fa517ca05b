// The definition in int_plane_codec.h as plain loops; metadata is int_plane_meta.cc.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "quant/int_plane_codec.h"
#include "quant/reference.h"

namespace zeropp::quant::reference {
namespace {

int quantize(const IntPlaneFormat& f, const IntFactors& by, float x, std::uint64_t element,
             const RoundingNoise* noise) {
  if (by.zero) return 0;
  const float v = (x * by.pre - by.offset) * by.mul;
  if (!f.stochastic()) return static_cast<int>(std::nearbyintf(std::clamp(v, by.low, by.high)));
  const float below = std::floor(v);
  const float q = below + (noise->uniform(element) < v - below ? 1.0F : 0.0F);
  return static_cast<int>(std::clamp(q, by.low, by.high));
}

float value(const IntMeta& meta, int q) {
  const float y = (meta.min + static_cast<float>(q) * meta.step) * meta.post;
  const float below = y > FLT_MAX ? FLT_MAX : y;
  return canonical(below < -FLT_MAX ? -FLT_MAX : below);
}

}  // namespace

IntRange int_range(const float* x, std::size_t n) {
  IntRange range{x[0], x[0], true};
  for (std::size_t i = 0; i < n; ++i) {
    range.min = std::min(range.min, x[i]);
    range.max = std::max(range.max, x[i]);
    range.finite = range.finite && std::isfinite(x[i]);
  }
  return range;
}

void encode_int_run(const IntPlaneFormat& f, const IntFactors& by, const float* x,
                    std::size_t n, std::uint64_t first, const RoundingNoise* noise,
                    std::byte* payload) {
  std::memset(payload, 0, f.layout().packed(n));
  for (std::size_t i = 0; i < n; ++i) {
    const int code = quantize(f, by, x[i], first + i, noise) - f.lowest();
    bit_planes::put(f.bits, payload, n, i, code);
  }
}

void encode_int_blocks(const IntPlaneFormat& f, const float* x, std::size_t n,
                       std::uint64_t first, const RoundingNoise* noise, std::byte* meta,
                       std::byte* payload) {
  const BlockLayout l = f.layout();
  for (std::size_t at = 0; at < n; at += l.block) {
    const std::size_t m = std::min(l.block, n - at);
    const double shift =
        f.rounding == Rounding::kShift ? noise->shift((first + at) / l.block) : 0;
    const IntFactors by = write_int_meta(f, reference::int_range(x + at, m), shift, meta);
    reference::encode_int_run(f, by, x + at, m, first + at, noise, payload);
    meta += l.block_bytes;
    payload += l.packed(m);
  }
}

void decode_int_blocks(const IntPlaneFormat& f, const std::byte* meta, const std::byte* payload,
                       std::size_t n, bool add, float* out) {
  const BlockLayout l = f.layout();
  for (std::size_t at = 0; at < n; at += l.block) {
    const std::size_t m = std::min(l.block, n - at);
    const IntMeta by = read_int_meta(f, meta);
    for (std::size_t i = at; i < at + m; ++i) {
      const float y = value(by, bit_planes::get(f.bits, payload, m, i - at) + f.lowest());
      out[i] = add ? canonical(out[i] + y) : y;
    }
    meta += l.block_bytes;
    payload += l.packed(m);
  }
}

}  // namespace zeropp::quant::reference
