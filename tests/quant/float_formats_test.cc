// Small floats against their definition: every code, every midpoint, and blocks by hand.

#include "quant/float_formats.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "quant/float_nvfp4.h"
#include "quant/metrics.h"
#include "quant/registry.h"
#include "tests/quant/codec_data.h"

namespace zeropp::quant {
namespace {

using namespace testing_support;  // NOLINT

/// 2^(e - bias) * (1 + m / 2^k), from the standard's words and widths alone.
double by_definition(int exponent_bits, int mantissa_bits, int bias, int code) {
  const int sign = code >> (exponent_bits + mantissa_bits) & 1;
  const int e = code >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int m = code & ((1 << mantissa_bits) - 1);
  const double fraction = m / std::pow(2.0, mantissa_bits);
  const double value =
      e == 0 ? std::pow(2.0, 1 - bias) * fraction : std::pow(2.0, e - bias) * (1 + fraction);
  return sign != 0 ? -value : value;
}

struct Description {
  const char* name;
  int exponent_bits, mantissa_bits, bias;
  double max, smallest;
  int finite_codes;  ///< Of both signs, two zeros counted.
};

template <class F>
Description description();
template <>
Description description<E4M3>() {
  return {"E4M3", 4, 3, 7, 448, 0x1p-9, 254};
}
template <>
Description description<E5M2>() {
  return {"E5M2", 5, 2, 15, 57344, 0x1p-16, 248};
}
template <>
Description description<E2M3>() {
  return {"E2M3", 2, 3, 1, 7.5, 0.125, 64};
}
template <>
Description description<E3M2>() {
  return {"E3M2", 3, 2, 3, 28, 0.0625, 64};
}
template <>
Description description<E2M1>() {
  return {"E2M1", 2, 1, 1, 6, 0.5, 16};
}

template <class F>
class SmallFloat : public testing::Test {};
using Formats = testing::Types<E4M3, E5M2, E2M3, E3M2, E2M1>;
TYPED_TEST_SUITE(SmallFloat, Formats);

TYPED_TEST(SmallFloat, EveryCodeHasItsValue) {
  using F = TypeParam;
  const Description d = description<F>();
  EXPECT_EQ(F::kBits, 1 + d.exponent_bits + d.mantissa_bits);
  EXPECT_EQ(F::kMax, d.max);
  EXPECT_EQ(std::ilogb(F::kMax), F::kEmax);
  int finite = 0;
  for (int code = 0; code < 1 << F::kBits; ++code) {
    const float y = F::decode(static_cast<std::uint8_t>(code));
    if (!std::isfinite(y)) continue;
    ++finite;
    const double want = by_definition(d.exponent_bits, d.mantissa_bits, d.bias, code);
    EXPECT_EQ(y, want) << d.name << ' ' << code;
    EXPECT_EQ(std::signbit(y), code >> (F::kBits - 1) != 0) << d.name << ' ' << code;
  }
  EXPECT_EQ(finite, d.finite_codes);
  EXPECT_EQ(F::decode(1), d.smallest);
}

TYPED_TEST(SmallFloat, EveryCodeReturns) {
  using F = TypeParam;
  for (int code = 0; code < 1 << F::kBits; ++code) {
    const float y = F::decode(static_cast<std::uint8_t>(code));
    if (std::isfinite(y)) {
      EXPECT_EQ(F::encode(y), code);
    }
  }
}

/// The nearest finite value by search over all codes; of two equally near the even code.
template <class F>
int nearest(float v) {
  int best = -1;
  double least = 0;
  const double magnitude = std::min(std::fabs(double{v}), 1e6);  // Differences stay exact.
  for (int code = 0; code <= F::kMagnitude; ++code) {
    const double y = F::decode(static_cast<std::uint8_t>(code));
    if (!std::isfinite(y)) continue;
    const double distance = std::fabs(magnitude - y);
    if (best < 0 || distance < least || (distance == least && code % 2 == 0)) {
      best = code;
      least = distance;
    }
  }
  return best + (std::signbit(v) ? F::kMagnitude + 1 : 0);
}

TYPED_TEST(SmallFloat, RoundsToNearestEvenAndSaturates) {
  using F = TypeParam;
  const auto check = [](float v) {
    for (const float x : {v, -v, std::nextafter(v, 0.0F), std::nextafter(-v, 0.0F),
                          std::nextafter(v, INFINITY), std::nextafter(-v, -INFINITY)}) {
      if (std::isinf(x)) continue;
      ASSERT_EQ(F::encode(x), nearest<F>(x)) << x;
    }
  };
  // Every value and midpoint with its neighbours.
  for (int code = 0; code < F::kTop; ++code) {
    const float low = F::decode(static_cast<std::uint8_t>(code));
    const float high = F::decode(static_cast<std::uint8_t>(code + 1));
    check(low);
    check((low + high) / 2);
  }
  for (const float v : {F::kMax, F::kMax * 1.01F, F::kMax * 1.0625F, F::kMax * 1.5F, 1e30F,
                        FLT_MAX, FLT_MIN, 1e-40F, 0x1p-149F, 0.0F}) {
    check(v);
  }
  EXPECT_EQ(F::encode(INFINITY), F::kTop);
  EXPECT_EQ(F::encode(-INFINITY), F::kTop + F::kMagnitude + 1);
  const Philox random({.purpose = Purpose::kTest, .tensor = 3});
  for (std::uint64_t i = 0; i < 3000; ++i) {
    check(
        std::ldexp(random.uniform(2 * i), static_cast<int>(random.word(2 * i + 1) % 48) - 28));
  }
}

TEST(SmallFloats, SpecialCodes) {
  for (const int sign : {0, 0x80}) {
    EXPECT_TRUE(std::isnan(E4M3::decode(static_cast<std::uint8_t>(0x7F | sign))));
    EXPECT_TRUE(std::isinf(E5M2::decode(static_cast<std::uint8_t>(0x7C | sign))));
    for (const int code : {0x7D, 0x7E, 0x7F}) {
      EXPECT_TRUE(std::isnan(E5M2::decode(static_cast<std::uint8_t>(code | sign))));
    }
  }
}

TEST(SmallFloats, E8M0) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(from_e8m0(static_cast<std::uint8_t>(code)), std::ldexp(1.0, code - 127));
  }
  EXPECT_TRUE(std::isnan(from_e8m0(255)));
}

TEST(SmallFloats, Nf4TakesTheNearestLevel) {
  EXPECT_EQ(Nf4::decode(Nf4::kZero), 0.0F);
  for (int i = 0; i < 16; ++i)
    EXPECT_EQ(Nf4::encode(Nf4::decode(static_cast<std::uint8_t>(i))), i);
  const Philox random({.purpose = Purpose::kTest, .tensor = 4});
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const float v = random.uniform(i) * 2.2F - 1.1F;
    const float got = Nf4::decode(Nf4::encode(v));
    for (const float level : Nf4::kLevels) {
      ASSERT_LE(std::fabs(got - v), std::fabs(level - v) + 1e-7) << v;
    }
  }
  for (int i = 0; i + 1 < 16; ++i) {
    const float middle = (Nf4::kLevels[i] + Nf4::kLevels[i + 1]) / 2;
    EXPECT_EQ(Nf4::encode(middle), i);
    EXPECT_EQ(Nf4::encode(std::nextafter(middle, 2.0F)), i + 1);
  }
}

// ---- Blocks. -------------------------------------------------------------------------------

std::vector<int> ints(const Bytes& bytes) {
  std::vector<int> out;
  for (const std::byte b : bytes) out.push_back(static_cast<int>(b));
  return out;
}

TEST(FloatBlocks, Mxfp4BytesByHand) {
  // max 12: e = 3 - 2 = 1, byte 128. v = x / 2.
  std::vector<float> x(32, 0.0F);
  x[0] = 12;     // 6: code 7.
  x[1] = -1;     // -0.5: 9.
  x[16] = 5;     // 2.5, a tie: 2 is even, code 4.
  x[17] = 7;     // 3.5, a tie: 4, code 6.
  x[31] = -0.5;  // -0.25, a tie: -0, code 8.
  std::vector<int> want(17, 0);
  want[0] = 128;
  want[1] = 7 | 4 << 4;
  want[2] = 9 | 6 << 4;
  want[16] = 8 << 4;
  EXPECT_EQ(ints(encode(*make_codec("mxfp4"), view(x))), want);
}

TEST(FloatBlocks, Mxfp6TailIsPlanesOfFourAndTwo) {
  // 5 numbers: planes of 3 and 2 bytes. max 1: e = -2, byte 125; v = 4 x.
  const std::vector<float> x{1, 0.5F, -0.25F, 0.03125F, 0};
  // 4, 2, -1, 0.125: E2M3 codes 0x18, 0x10, 0x28, 0x01, 0.
  EXPECT_EQ(ints(encode(*make_codec("mxfp6"), view(x))),
            (std::vector<int>{125, 0x8 | 0x1 << 4, 0x0, 0x8, 1 | 2 << 2, 1}));
}

TEST(FloatBlocks, Fp8BytesByHand) {
  const std::vector<float> x{896, -2, 0, 1};
  EXPECT_EQ(ints(encode(*make_codec("fp8"), view(x))),
            (std::vector<int>{0, 0, 0, 0x40, 0x7E, 0xB8, 0, 0x30}));  // Scale 2.
}

TEST(FloatBlocks, Nvfp4BytesByHand) {
  // max 2688: t = 1. Block scales 448 and 1 (of absmax 6).
  std::vector<float> x(17, 0.0F);
  x[0] = 2688;
  x[8] = -448;
  x[16] = 6;
  std::vector<int> want{0, 0, 0x80, 0x3F, 0x7E, 0x38};
  want.push_back(7 | 10 << 4);
  want.resize(want.size() + 7);
  want.push_back(7);
  EXPECT_EQ(ints(encode(*make_codec("nvfp4"), view(x))), want);
}

TEST(FloatBlocks, CostsAreExact) {
  const std::uint64_t n = 1 << 20;
  const auto bits = [&](const char* spec) {
    return 8.0 * static_cast<double>(make_codec(spec)->wire_bytes(n).total()) / n;
  };
  EXPECT_EQ(bits("fp8"), 8.25);
  EXPECT_EQ(bits("fp8:block=0,format=e5m2"), 8 + 32.0 / n);
  EXPECT_EQ(bits("mxfp8"), 8.25);
  EXPECT_EQ(bits("mxfp6"), 6.25);
  EXPECT_EQ(bits("mxfp6:format=e3m2"), 6.25);
  EXPECT_EQ(bits("mxfp4"), 4.25);
  EXPECT_EQ(bits("nvfp4"), 4.5 + 32.0 / n);
  EXPECT_EQ(bits("nf4"), 4.5);
  EXPECT_EQ(make_codec("mxfp4")->wire_bytes(33),
            (WireBytes{.payload = 16, .scale = 2, .padding = 1}));
}

TEST(FloatBlocks, MxScaleIsClamped) {
  const auto codec = make_codec("mxfp4");
  for (const float top : {FLT_MAX, -FLT_MAX}) {
    const std::vector<float> x{top, 0};
    const Bytes wire = encode(*codec, view(x));
    EXPECT_EQ(static_cast<int>(wire[0]), 127 + 125);
    EXPECT_EQ(decode(*codec, wire, 2)[0], std::copysign(6 * 0x1p125F, top));
  }
  const std::vector<float> x{0x1p-127F, 0x1p-128F, 0x1p-149F};
  const Bytes wire = encode(*codec, view(x));
  EXPECT_EQ(static_cast<int>(wire[0]), 0);
  EXPECT_EQ(decode(*codec, wire, 3), (std::vector<float>{0x1p-127F, 0x1p-128F, 0}));
}

TEST(FloatBlocks, BadNumbersPoisonTheirBlockAloneAndLeaveTheSpanScale) {
  for (const char* spec : {"nvfp4", "nvfp4:scale=4over6", "mxfp8", "mxfp6", "nf4:block=16"}) {
    const auto codec = make_codec(spec);
    const std::size_t block = codec->traits().block;
    const auto clean = decode(*codec, encode(*codec, view(make_data("normal", 128))), 128);
    auto x = make_data("normal", 128);
    x[70] = INFINITY;
    const auto y = decode(*codec, encode(*codec, view(x)), 128);
    for (std::size_t i = 0; i < 128; ++i) {
      EXPECT_EQ(std::isnan(y[i]), i / block == 70 / block) << spec << ' ' << i;
    }
    if (std::string(spec).starts_with("nvfp4")) continue;  // Its span scale may lose its max.
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(y[i], clean[i]) << spec;
  }
}

TEST(FloatBlocks, LargestAndSmallestSpansOfNvfp4) {
  for (const char* spec : {"nvfp4", "nvfp4:scale=4over6"}) {
    const auto codec = make_codec(spec);
    for (const float top : {FLT_MAX, 1.0F, 0x1p-100F, 0x1p-126F, 0x1p-140F}) {
      const std::vector<float> x{top, -top, top / 2, 0};
      const auto y = decode(*codec, encode(*codec, view(x)), 4);
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_LE(std::fabs(double{y[i]} - x[i]), top * 0.17 + 0x1p-149) << spec << ' ' << top;
      }
    }
  }
}

double nmse(const std::string& spec) {
  const auto codec = make_codec(spec);
  const auto x = make_data("normal", 65536);
  const auto y = decode(*codec, encode(*codec, view(x)), x.size());
  ErrorSums sums;
  sums.add(view(x), view(y));
  const double error = sums.metrics().nmse;
  const double bits = 8.0 * static_cast<double>(codec->wire_bytes(x.size()).total()) / 65536;
  testing::Test::RecordProperty(spec, std::to_string(bits) + " bits, " + std::to_string(error));
  return error;
}

TEST(FloatBlocks, ErrorOnNormalData) {
  // Ranges around what the formats give; the orderings are those of the literature.
  const double nv = nmse("nvfp4"), over = nmse("nvfp4:scale=4over6"), nf4 = nmse("nf4"),
               mx4 = nmse("mxfp4"), e2m3 = nmse("mxfp6"), e3m2 = nmse("mxfp6:format=e3m2"),
               mx8 = nmse("mxfp8"), e5m2 = nmse("mxfp8:format=e5m2"), fp8 = nmse("fp8"),
               span = nmse("fp8:block=0");
  EXPECT_LT(over, nv);
  EXPECT_LT(nv, mx4);
  EXPECT_LT(nf4, mx4);
  EXPECT_LT(e2m3, e3m2);
  EXPECT_LT(mx8, e5m2);
  EXPECT_LT(fp8, e5m2);
  EXPECT_LT(span, e5m2);
  EXPECT_GT(mx8, 3e-4);
  EXPECT_LT(mx8, 9e-4);
  EXPECT_GT(nv, 6e-3);
  EXPECT_LT(mx4, 2e-2);
}

}  // namespace
}  // namespace zeropp::quant
