#include "quant/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "quant/error.h"
#include "quant/rng.h"
#include "quant/simd.h"

namespace zeropp::quant {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};

/// A 16-bit float format by its definition, in double: mantissa bits and smallest exponent.
struct Format {
  int mantissa, min_exponent;
  double max;
};
constexpr Format kBf16{7, -126, 0x1.FEp127}, kFp16{10, -14, 65504.0};

/// Nearest even by exact arithmetic: x / ulp is exact in double for these formats.
double nearest(const Format& f, float x) {
  if (std::isnan(x) || std::isinf(x) || x == 0) return x;
  const int exponent = std::max(std::ilogb(x), f.min_exponent);
  const double ulp = std::ldexp(1.0, exponent - f.mantissa);
  const double y = std::nearbyint(static_cast<double>(x) / ulp) * ulp;
  return std::fabs(y) > f.max ? std::copysign(std::numeric_limits<double>::infinity(), y) : y;
}

/// Random bit patterns of every exponent, halfway cases and their neighbours, specials.
std::vector<float> hard_floats() {
  std::vector<float> x;
  const Philox random({.purpose = Purpose::kTest, .tensor = 1});
  for (std::uint64_t i = 0; i < 200000; ++i) x.push_back(std::bit_cast<float>(random.word(i)));
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const auto b = static_cast<std::uint16_t>(h);
    for (const float low : {from_bf16_bits(b), from_f16_bits(b)}) {
      if (!std::isfinite(low)) continue;
      const auto bits = std::bit_cast<std::uint32_t>(low);
      for (const std::uint32_t half : {0x8000U, 0x1000U}) {
        for (const std::uint32_t near : {half - 1, half, half + 1}) {
          x.push_back(std::bit_cast<float>(bits + near));
        }
      }
      x.push_back(low + (low == 0 ? 0x1p-25F : std::ldexp(std::fabs(low), -12)));
    }
  }
  for (int e = -149; e < 128; ++e) {
    for (const float m : {1.0F, 1.5F, 0x1.FFFFFEp0F}) {
      x.push_back(std::ldexp(m, e));
      x.push_back(-std::ldexp(m, e));
    }
  }
  for (const std::uint32_t bits :
       {0x7F800000U, 0xFF800000U, 0x7FC00000U, 0x7F800001U, 0xFFBFFFFFU, 0x7F802000U,
        0x477FEFFFU, 0x477FF000U, 0x7F7F7FFFU, 0x7F7F8000U, 0x7F7FFFFFU, 0x80000000U}) {
    x.push_back(std::bit_cast<float>(bits));
  }
  return x;
}

bool same(double want, float got) {
  if (std::isnan(want)) return std::isnan(got);
  return want == got && std::signbit(want) == std::signbit(got);
}

TEST(Convert, SixteenBitValuesSurviveTheRoundTrip) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const auto b = static_cast<std::uint16_t>(h);
    const bool bf16_nan = (b & 0x7F80) == 0x7F80 && (b & 0x7F) != 0;
    const bool fp16_nan = (b & 0x7C00) == 0x7C00 && (b & 0x3FF) != 0;
    ASSERT_EQ(bf16_bits(from_bf16_bits(b)), bf16_nan ? b | 0x40 : b) << h;
    ASSERT_EQ(f16_bits(from_f16_bits(b)), fp16_nan ? b | 0x200 : b) << h;
    ASSERT_EQ(std::isnan(from_bf16_bits(b)), bf16_nan);
    ASSERT_EQ(std::isnan(from_f16_bits(b)), fp16_nan);
  }
}

TEST(Convert, Fp16ValuesFollowTheFormat) {
  for (std::uint32_t h = 0; h < 0x7C00; ++h) {
    const int exponent = static_cast<int>(h >> 10), mantissa = static_cast<int>(h & 1023);
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(from_f16_bits(static_cast<std::uint16_t>(h)), value) << h;
    ASSERT_EQ(from_f16_bits(static_cast<std::uint16_t>(h | 0x8000)), -value) << h;
  }
}

TEST(Convert, RoundsToNearestEven) {
  for (const float x : hard_floats()) {
    ASSERT_TRUE(same(nearest(kBf16, x), round_to(Dtype::kBF16, x))) << std::hexfloat << x;
    ASSERT_TRUE(same(nearest(kFp16, x), round_to(Dtype::kF16, x))) << std::hexfloat << x;
    ASSERT_TRUE(same(x, round_to(Dtype::kF32, x)));
  }
}

class EveryTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { force_simd_target(GetParam()); }
  void TearDown() override { force_simd_target(""); }
};

std::vector<std::byte> bytes_of(const std::vector<float>& x, Dtype d) {
  std::vector<std::byte> out(x.size() * size_of(d));
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (d == Dtype::kF32) {
      std::memcpy(&out[4 * i], &x[i], 4);
    } else {
      const std::uint16_t h = d == Dtype::kBF16 ? bf16_bits(x[i]) : f16_bits(x[i]);
      std::memcpy(&out[2 * i], &h, 2);
    }
  }
  return out;
}

std::vector<float> floats_of(const std::vector<std::byte>& bytes, Dtype d) {
  std::vector<float> x(bytes.size() / size_of(d));
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (d == Dtype::kF32) {
      std::memcpy(&x[i], &bytes[4 * i], 4);
    } else {
      std::uint16_t h;
      std::memcpy(&h, &bytes[2 * i], 2);
      x[i] = d == Dtype::kBF16 ? from_bf16_bits(h) : from_f16_bits(h);
    }
  }
  return x;
}

TEST_P(EveryTarget, ConvertsLikeTheScalarFunctions) {
  const auto x = hard_floats();
  for (const Dtype from : kDtypes) {
    const auto source = bytes_of(x, from);
    const auto as_floats = floats_of(source, from);
    for (const Dtype to : kDtypes) {
      std::vector<std::byte> got(x.size() * size_of(to), std::byte{0xA5});
      convert({source.data(), from, x.size()}, {got.data(), to, x.size()});
      // The same dtype copies: a signalling NaN stays what it is.
      const auto want = from == to ? source : bytes_of(as_floats, to);
      ASSERT_TRUE(got == want) << name(from) << " to " << name(to);
    }
  }
}

TEST_P(EveryTarget, TailsAndUnalignedViewsTouchNothingElse) {
  const auto x = hard_floats();
  for (const Dtype from : kDtypes) {
    for (const Dtype to : kDtypes) {
      for (std::size_t n = 0; n < 70; ++n) {
        const std::vector<float> part(x.begin() + 500, x.begin() + 500 + static_cast<long>(n));
        auto source = bytes_of(part, from);
        const auto want = from == to ? source : bytes_of(floats_of(source, from), to);
        source.insert(source.begin(), std::byte{1});
        std::vector<std::byte> got(want.size() + 2, std::byte{0xA5});
        convert({source.data() + 1, from, n}, {got.data() + 1, to, n});
        ASSERT_EQ(got.front(), std::byte{0xA5});
        ASSERT_EQ(got.back(), std::byte{0xA5});
        ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin() + 1)) << n;
      }
    }
  }
}

TEST_P(EveryTarget, AccumulateAndDivideRoundOnceFromFp32) {
  const auto all = hard_floats();
  const std::vector<float> x(all.begin(), all.begin() + 5003);
  std::vector<float> y(all.rbegin(), all.rbegin() + 5003);
  for (const Dtype a : kDtypes) {
    for (const Dtype b : kDtypes) {
      const auto xs = bytes_of(x, a), ys = bytes_of(y, b);
      const auto xf = floats_of(xs, a), yf = floats_of(ys, b);
      std::vector<float> sums(x.size()), quotients(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float nan = std::bit_cast<float>(0x7FC00000U);
        const float sum = xf[i] + yf[i], quotient = yf[i] / 3.0F;
        sums[i] = std::isnan(sum) ? nan : sum;
        quotients[i] = std::isnan(quotient) ? nan : quotient;
      }
      auto acc = xs;
      accumulate({acc.data(), a, x.size()}, {ys.data(), b, x.size()});
      ASSERT_TRUE(acc == bytes_of(sums, a)) << name(a) << " += " << name(b);
      auto out = xs;
      divide({ys.data(), b, x.size()}, 3.0F, {out.data(), a, x.size()});
      ASSERT_TRUE(out == bytes_of(quotients, a)) << name(a) << " = " << name(b) << " / 3";
    }
  }
}

TEST_P(EveryTarget, DivideAddRoundsOnceAndCountsWhatItLosesToZero) {
  const auto all = hard_floats();
  const std::vector<float> x(all.begin(), all.begin() + 5003);
  const std::vector<float> y(all.rbegin(), all.rbegin() + 5003);
  const auto canonical = [](float v) {
    return std::isnan(v) ? std::bit_cast<float>(0x7FC00000U) : v;
  };
  for (const Dtype a : kDtypes) {
    for (const Dtype b : kDtypes) {
      for (const float divisor : {1.0F, 3.0F, 32.0F, 0.25F, 0x1p60F}) {
        for (const bool adds : {false, true}) {
          const auto xs = bytes_of(x, a), ys = bytes_of(y, b);
          const auto xf = floats_of(xs, a), yf = floats_of(ys, b);
          std::vector<float> sums(x.size());
          std::uint64_t lost = 0;
          for (std::size_t i = 0; i < x.size(); ++i) {
            sums[i] = canonical(xf[i] / divisor);
            if (adds) sums[i] = canonical(sums[i] + yf[i]);
            lost += sums[i] != 0 && round_to(b, sums[i]) == 0 ? 1 : 0;
          }
          auto out = ys;
          const ConstView before{adds ? ys.data() : nullptr, b, adds ? x.size() : 0};
          EXPECT_EQ(
              divide_add({xs.data(), a, x.size()}, divisor, before, {out.data(), b, x.size()}),
              lost)
              << name(a) << name(b) << divisor;
          ASSERT_TRUE(out == bytes_of(sums, b)) << name(a) << name(b) << divisor << adds;
        }
      }
    }
  }
}

TEST_P(EveryTarget, SumOfSquaresHasOneOrder) {
  const Philox random({.purpose = Purpose::kTest, .tensor = 2});
  for (const std::size_t n : {0UL, 1UL, 7UL, 8UL, 9UL, 1023UL, 1025UL, 4099UL}) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = random.normal(i) * (i % 3 == 0 ? 1e4F : 1.0F);
    double lanes[8] = {};
    for (std::size_t i = 0; i < n; ++i) lanes[i % 8] += static_cast<double>(x[i]) * x[i];
    const double want = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                        ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    EXPECT_EQ(sum_squares(view(x)), want) << n;
  }
}

TEST_P(EveryTarget, FindsOneNonFiniteNumberAnywhere) {
  for (const Dtype d : kDtypes) {
    for (const std::size_t n : {1UL, 15UL, 16UL, 17UL, 1500UL}) {
      const std::vector<float> ones(n, d == Dtype::kF16 ? 65504.0F : 3e38F);
      ASSERT_TRUE(all_finite({bytes_of(ones, d).data(), d, n}));
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          auto x = ones;
          x[at] = bad;
          const auto bytes = bytes_of(x, d);
          ASSERT_FALSE(all_finite({bytes.data(), d, n})) << name(d) << n << ' ' << at;
        }
      }
    }
  }
  EXPECT_TRUE(all_finite({}));
}

TEST(Convert, SizesMustMatch) {
  std::vector<float> a(3), b(4);
  EXPECT_THROW(convert(view(a), mut_view(b)), UsageError);
  EXPECT_THROW(accumulate(mut_view(a), view(b)), UsageError);
  EXPECT_THROW(divide(view(a), 2, mut_view(b)), UsageError);
  EXPECT_THROW(divide_add(view(a), 2, view(b), mut_view(a)), UsageError);
}

TEST(Simd, NamesItsTargetsAndRefusesOthers) {
  const auto targets = simd_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.front(), "scalar");
  EXPECT_THROW(force_simd_target("MMX"), UsageError);
  EXPECT_FALSE(scalar_forced());
  force_simd_target("scalar");
  EXPECT_TRUE(scalar_forced());
  force_simd_target("");
  EXPECT_FALSE(scalar_forced());
}

INSTANTIATE_TEST_SUITE_P(Simd, EveryTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& i) { return i.param; });

}  // namespace
}  // namespace zeropp::quant
