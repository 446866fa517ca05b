#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace zeropp::quant {

/// A float of at most 8 bits: sign, exponent, kM bits of mantissa, bias kB, subnormals. The
/// value of a code is 2^(e - bias) * (1 + m / 2^kM), or 2^(1 - bias) * m / 2^kM where e = 0
/// (OCP Microscaling Formats 1.0, OCP 8-bit Floating Point 1.0).
template <int kE, int kM, int kB>
struct Minifloat {
  static constexpr int kBits = 1 + kE + kM, kMantissa = kM, kBias = kB;
  static constexpr std::uint8_t kZero = 0;
  static constexpr int kMagnitude = (1 << (kE + kM)) - 1;  ///< Mask of a code without its sign.
  static constexpr bool kIeee = kE == 5;                   ///< E5M2: infinities and NaNs.
  static constexpr bool kOneNan = kBits == 8 && !kIeee;    ///< E4M3: only +-0x7F is not finite.
  static constexpr int kTop =
      kIeee ? kMagnitude - (1 << kM) : kMagnitude - (kOneNan ? 1 : 0);  ///< Largest finite.
  static constexpr int kEmax = (kTop >> kM) - kB;  ///< Exponent of the largest value.
  static constexpr float kMax =
      static_cast<float>((kTop & ((1 << kM) - 1)) + (1 << kM)) *
      (kEmax >= kM ? static_cast<float>(1 << (kEmax - (kEmax >= kM ? kM : kEmax)))
                   : 1.0F / static_cast<float>(1 << (kM - (kEmax < kM ? kEmax : kM))));

  /// Nearest value, ties to even, saturating at +-kMax. v is not NaN. Adding a power of two
  /// rounds v to a multiple of its unit in the last place; how many units there are, and the
  /// exponent above the subnormals', is the code.
  static constexpr std::uint8_t encode(float v) {
    constexpr int kLowest = 128 - kB;  // Biased fp32 exponent of the smallest normal.
    const auto u = std::bit_cast<std::int32_t>(v);
    const int sign = (u >> 31) & (kMagnitude + 1);
    const float magnitude = std::bit_cast<float>(u & 0x7FFFFFFF);
    const float a = magnitude < kMax ? magnitude : kMax;
    const int e = std::bit_cast<std::int32_t>(a) >> 23;
    const int exponent = e > kLowest ? e : kLowest;
    const int unit = (exponent + 23 - kM) << 23;
    const int units = std::bit_cast<std::int32_t>(a + std::bit_cast<float>(unit)) - unit;
    return static_cast<std::uint8_t>(sign + units + ((exponent - kLowest) << kM));
  }

  /// Down or up to a neighbour: up if u < the distance to the lower one in units of their gap.
  /// Saturates; v is not NaN.
  static constexpr std::uint8_t encode(float v, float u) {
    constexpr int kLowest = 128 - kB;
    const auto bits = std::bit_cast<std::int32_t>(v);
    const int sign = (bits >> 31) & (kMagnitude + 1);
    const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFF);
    const float a = magnitude < kMax ? magnitude : kMax;
    const int e = std::bit_cast<std::int32_t>(a) >> 23;
    const int exponent = e > kLowest ? e : kLowest;
    const float units = a * std::bit_cast<float>((254 + kM - exponent) << 23);  // Exact.
    const int below = static_cast<int>(units);
    const int up = u < units - static_cast<float>(below) ? 1 : 0;
    return static_cast<std::uint8_t>(sign + below + up + ((exponent - kLowest) << kM));
  }

  static constexpr float decode(std::uint8_t code) {
    const int c = code & kMagnitude;
    const int sign =
        static_cast<int>(static_cast<std::uint32_t>(code & (kMagnitude + 1)) << (31 - kE - kM));
    const int normal = (c << (23 - kM)) + ((127 - kB) << 23);
    constexpr float kSmallest = std::bit_cast<float>((128 - kB - kM) << 23);
    const int subnormal = std::bit_cast<std::int32_t>(static_cast<float>(c) * kSmallest);
    int u = c < (1 << kM) ? subnormal : normal;
    if constexpr (kOneNan) u = c == kMagnitude ? 0x7FC00000 : u;
    if constexpr (kIeee) u = c > kTop ? (c == kTop + 1 ? 0x7F800000 : 0x7FC00000) : u;
    return std::bit_cast<float>(u | sign);
  }
};

using E4M3 = Minifloat<4, 3, 7>;   ///< +-448; the "fn" kind: no infinities.
using E5M2 = Minifloat<5, 2, 15>;  ///< +-57344.
using E2M3 = Minifloat<2, 3, 1>;   ///< +-7.5.
using E3M2 = Minifloat<3, 2, 3>;   ///< +-28.
using E2M1 = Minifloat<2, 1, 1>;   ///< +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}.

/// NormalFloat of 4 bits (QLoRA, Dettmers et al. 2023, appendix E): quantiles of a normal
/// distribution scaled to [-1, 1]. Nearest level; halfway (in fp32) the lower one.
struct Nf4 {
  static constexpr int kBits = 4;
  static constexpr std::uint8_t kZero = 7;
  static constexpr float kMax = 1;
  static constexpr float kLevels[16] = {-1.0F,
                                        -0.6961928009986877F,
                                        -0.5250730514526367F,
                                        -0.39491748809814453F,
                                        -0.28444138169288635F,
                                        -0.18477343022823334F,
                                        -0.09105003625154495F,
                                        0.0F,
                                        0.07958029955625534F,
                                        0.16093020141124725F,
                                        0.24611230194568634F,
                                        0.33791524171829224F,
                                        0.44070982933044434F,
                                        0.5626170039176941F,
                                        0.7229568362236023F,
                                        1.0F};

  static constexpr std::uint8_t encode(float v) {
    int code = 0;
    for (int i = 0; i < 15; ++i) code += v > (kLevels[i] + kLevels[i + 1]) / 2 ? 1 : 0;
    return static_cast<std::uint8_t>(code);
  }
  /// To one of the levels around v, as Minifloat::encode(v, u).
  static constexpr std::uint8_t encode(float v, float u) {
    int code = 0;
    for (int i = 1; i < 15; ++i) code += v >= kLevels[i] ? 1 : 0;
    const float gap = kLevels[code + 1] - kLevels[code];
    return static_cast<std::uint8_t>(code + (u * gap < v - kLevels[code] ? 1 : 0));
  }
  static constexpr float decode(std::uint8_t code) { return kLevels[code & 15]; }

  // As arrays of a vector's size, for table look-ups.
  static constexpr std::array<float, 16> levels() {
    std::array<float, 16> all{};
    for (std::size_t i = 0; i < 16; ++i) all[i] = kLevels[i];
    return all;
  }
  static constexpr std::array<float, 16> gaps() {
    std::array<float, 16> all{};
    for (std::size_t i = 0; i < 15; ++i) all[i] = kLevels[i + 1] - kLevels[i];
    return all;
  }
  /// Numbers above the i-th lie nearer to level i + 1 than to level i.
  static constexpr std::array<float, 16> middles() {
    std::array<float, 16> all{};
    for (std::size_t i = 0; i < 15; ++i) all[i] = (kLevels[i] + kLevels[i + 1]) / 2;
    return all;
  }
};

/// E8M0, the scale of MX blocks: 2^(code - 127), 255 is NaN.
inline constexpr float from_e8m0(std::uint8_t code) {
  const std::int32_t u = code == 255 ? 0x7FC00000 : code == 0 ? 0x00400000 : code << 23;
  return std::bit_cast<float>(u);
}

}  // namespace zeropp::quant
