#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>

#include "quant/hadamard.h"
#include "quant/reference.h"
#include "quant/rng.h"

namespace zeropp::quant {

void rotation_signs(std::uint32_t word, std::span<float> signs) {
  const Philox random({.seed = word, .purpose = Purpose::kRotation});
  for (std::size_t i = 0; i < signs.size();) {
    const auto words = random.block(i / 128);  // A bit a number.
    for (std::size_t j = 0; j < 128 && i < signs.size(); ++j, ++i) {
      signs[i] = (words[j / 32] >> (j % 32) & 1) != 0 ? -1.0F : 1.0F;
    }
  }
}

namespace reference {
namespace {

void butterflies(float* x, std::size_t m) {
  for (std::size_t h = 1; h < m; h *= 2) {
    for (std::size_t i = 0; i < m; i += 2 * h) {
      for (std::size_t j = i; j < i + h; ++j) {
        const float a = x[j], b = x[j + h];
        x[j] = a + b;
        x[j + h] = a - b;
      }
    }
  }
}

float finite_or_nan(float x, float value) {
  return std::isfinite(x) ? value : std::bit_cast<float>(std::uint32_t{0x7FC00000});
}

const float* signs_at(const Rotation& r, std::size_t first) {
  return r.signs.empty() ? nullptr : r.signs.data() + first % Rotation::kMaxGroup;
}

}  // namespace

void rotate_group(const float* x, const float* signs, std::size_t m, float* y) {
  const float scale = 1.0F / static_cast<float>(m);
  for (std::size_t i = 0; i < m; ++i) {
    y[i] = (signs == nullptr ? x[i] : x[i] * signs[i]) * scale;
  }
  butterflies(y, m);
  for (std::size_t i = 0; i < m; ++i) y[i] = finite_or_nan(y[i], y[i]);
}

void unrotate_group(const float* y, const float* signs, std::size_t m, float* x) {
  const float scale = 1.0F / static_cast<float>(m);
  for (std::size_t i = 0; i < m; ++i) x[i] = y[i] * scale;
  butterflies(x, m);
  for (std::size_t i = 0; i < m; ++i) {
    float v = std::min(std::max(x[i] * static_cast<float>(m), -FLT_MAX), FLT_MAX);
    if (signs != nullptr) v *= signs[i];
    x[i] = finite_or_nan(x[i], v);
  }
}

void rotate(const Rotation& r, ConstView x, float* y) {
  std::array<float, Rotation::kMaxGroup> in;
  for_rotation_groups(r.group, x.n, [&](std::size_t first, std::size_t m) {
    for (std::size_t i = 0; i < m; ++i) in[i] = load(x, first + i);
    rotate_group(in.data(), signs_at(r, first), m, y + first);
  });
}

void unrotate(const Rotation& r, const float* y, MutView x) {
  std::array<float, Rotation::kMaxGroup> out;
  for_rotation_groups(r.group, x.n, [&](std::size_t first, std::size_t m) {
    unrotate_group(y + first, signs_at(r, first), m, out.data());
    for (std::size_t i = 0; i < m; ++i) store(x, first + i, out[i]);
  });
}

}  // namespace reference
}  // namespace zeropp::quant
