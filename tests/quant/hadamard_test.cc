// Rotations against the matrix they are, and what codecs gain by them.

#include "quant/hadamard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "quant/error.h"
#include "quant/metrics.h"
#include "quant/registry.h"
#include "tests/quant/codec_data.h"
#include "tests/quant/error_of.h"

namespace zeropp::quant {
namespace {

using namespace testing_support;  // NOLINT

/// Element (i, j) of H_n: the parity of the bits that both indices have.
double hadamard_element(std::size_t i, std::size_t j) {
  return std::popcount(i & j) % 2 == 0 ? 1 : -1;
}

TEST(Hadamard, IsTheMatrix) {
  for (std::size_t n = 2; n <= Rotation::kMaxGroup; n *= 2) {
    const auto x = make_data("normal", n + 5);  // A whole group, 4 and 1.
    std::vector<float> y(x.size());
    rotate({.group = n, .signs = {}}, view(x), y.data());
    for (std::size_t i = 0; i<n; i += n> 256 ? 37 : 1) {
      double wanted = 0;
      for (std::size_t j = 0; j < n; ++j) wanted += hadamard_element(i, j) * x[j];
      ASSERT_NEAR(y[i], wanted / static_cast<double>(n), 1e-6) << n << ' ' << i;
    }
    if (n > 4) {
      EXPECT_NEAR(y[n + 1], (x[n] - x[n + 1] + x[n + 2] - x[n + 3]) / 4, 1e-6);
      EXPECT_EQ(y[n + 4], x[n + 4]);
    }
    std::vector<float> back(x.size());
    unrotate({.group = n, .signs = {}}, y.data(), mut_view(back));
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(back[i], x[i], 1e-5);
  }
}

TEST(Hadamard, EveryInstructionSetGivesTheReferenceBits) {
  std::vector<float> signs(Rotation::kMaxGroup);
  rotation_signs(77, signs);
  for (std::size_t n = 2; n <= Rotation::kMaxGroup; n *= 2) {
    const std::size_t size = 2 * n + n / 2 + 7;
    const auto x = make_data("exponents", size);
    for (const Dtype d : kDtypes) {
      const Numbers in(d, x);
      for (const bool random : {false, true}) {
        const Rotation r{
            .group = n,
            .signs = random ? std::span<const float>(signs) : std::span<const float>()};
        std::vector<float> y(size);
        Numbers back(d, size);
        {
          const OnTarget forced("scalar");
          rotate(r, in.view(), y.data());
          unrotate(r, y.data(), back.view());
        }
        for (const std::string& target : simd_targets()) {
          const OnTarget forced(target);
          std::vector<float> got(size);
          Numbers got_back(d, size);
          rotate(r, in.view(), got.data());
          unrotate(r, y.data(), got_back.view());
          ASSERT_TRUE(same_bits(got, y)) << n << ' ' << target;
          ASSERT_TRUE(got_back.bytes() == back.bytes()) << n << ' ' << target;
          unrotate(r, got.data(), mut_view(got));  // In place.
          if (d == Dtype::kF32) {
            ASSERT_TRUE(same_bits(got, got_back.floats()));
          }
        }
      }
    }
  }
}

TEST(Hadamard, SignsAreFairAndKeyed) {
  std::vector<float> a(4096), b(4096);
  rotation_signs(1, a);
  rotation_signs(2, b);
  double sum = 0, product = 0, neighbours = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::fabs(a[i]), 1);
    sum += a[i];
    product += a[i] * b[i];
    neighbours += a[i] * a[(i + 1) % a.size()];
  }
  for (const double s : {sum, product, neighbours}) EXPECT_LT(std::fabs(s), 6 * 64);
}

double nmse(const std::string& spec, const std::vector<float>& x) {
  const auto codec = make_codec(spec);
  ErrorSums sums;
  sums.add(view(x), view(decode(*codec, encode(*codec, view(x)), x.size())));
  return sums.metrics().nmse;
}

TEST(Hadamard, TakesTheErrorOffOutliers) {
  std::vector<float> x = make_data("normal", 4096);
  for (std::size_t i = 5; i < x.size(); i += 128) x[i] *= 30;
  EXPECT_LT(nmse("hadamard(128)|int4:block=128", x), nmse("int4:block=128", x) / 3);
}

TEST(Hadamard, SpecsAreChecked) {
  EXPECT_EQ(make_codec("hadamard|int4")->spec(), "hadamard(32)|int4:block=128");
  EXPECT_EQ(make_codec("hadamard(n=64,random=yes)|int4")->spec(),
            "hadamard(64,random=yes)|int4:block=128");
  EXPECT_THAT(error_of("hadamard(48)|int4"), testing::HasSubstr("power of two"));
  for (const char* bad : {"hadamard(1)|int4", "hadamard(8192)|int4", "hadamard(x)|int4"}) {
    EXPECT_THAT(error_of(bad), testing::HasSubstr("n=2 to 4096")) << bad;
  }
  EXPECT_THAT(error_of("hadamard(32)|int4:block=48"), testing::HasSubstr("multiple of n"));
  EXPECT_THAT(error_of("hadamard(32,random=maybe)|int4"), testing::HasSubstr("no or yes"));
  EXPECT_THAT(error_of("hadamard(32,random=yes)|ef|int4"), testing::HasSubstr("outside"));
  EXPECT_THAT(error_of("ef|hadamard(32,random=yes)|int4"), testing::HasSubstr("no error"));
}

TEST(RandomHadamard, IsAlikeOnRanksAndHopsAndNewEachStep) {
  const auto codec = make_codec("hadamard(32,random=yes)|int8:block=64");
  const auto x = make_data("normal", 256);
  const Bytes mine = encode(*codec, view(x), context(3));
  const auto same = [&](auto set) {
    CodecContext ctx = context(3);
    set(ctx);
    return encode(*codec, view(x), ctx) == mine;
  };
  EXPECT_TRUE(same([](CodecContext& c) { c.sender = 9; }));
  EXPECT_TRUE(same([](CodecContext& c) { c.level = 2; }));
  EXPECT_TRUE(same([](CodecContext& c) { c.second_hop = true; }));
  EXPECT_FALSE(same([](CodecContext& c) { ++c.step; }));
  EXPECT_FALSE(same([](CodecContext& c) { ++c.micro; }));
  EXPECT_FALSE(same([](CodecContext& c) { ++c.tensor; }));
  EXPECT_FALSE(same([](CodecContext& c) { ++c.part; }));
  EXPECT_FALSE(same([](CodecContext& c) { ++c.seed; }));
}

TEST(RandomHadamard, SumsWiresOfDifferentRotationsToo) {
  const auto codec = make_codec("hadamard(32,random=yes)|int8:block=64");
  const auto x = make_data("normal", 256);
  CodecContext other = context(3);
  ++other.step;
  const Bytes a = encode(*codec, view(x)), b = encode(*codec, view(x), other);
  const std::vector<std::span<const std::byte>> wires{a, b};
  std::vector<float> mean(x.size());
  codec->decode_sum(wires, 2, mut_view(mean));
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(mean[i], x[i], 0.1);
}

/// Mean and standard error of decodes over many steps, element by element.
struct Draws {
  std::vector<double> mean, z;
  double along = 0;  ///< <mean, x> / |x|^2.
};
Draws draw(const std::string& spec, const std::vector<float>& x, int draws) {
  const auto codec = make_codec(spec);
  std::vector<double> sum(x.size()), squares(x.size());
  for (int d = 0; d < draws; ++d) {
    CodecContext ctx = context();
    ctx.step = static_cast<std::uint64_t>(d);
    const auto y = decode(*codec, encode(*codec, view(x), ctx), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum[i] += y[i] - x[i];
      squares[i] += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
    }
  }
  Draws result;
  double xy = 0, xx = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = sum[i] / draws;
    const double sd = std::sqrt(std::max(1e-30, squares[i] / draws - error * error));
    result.mean.push_back(x[i] + error);
    result.z.push_back(error / sd * std::sqrt(draws));
    xy += result.mean.back() * x[i];
    xx += double{x[i]} * x[i];
  }
  result.along = xy / xx;
  return result;
}
double worst(const Draws& d) {
  double z = 0;
  for (const double v : d.z) z = std::max(z, std::fabs(v));
  return z;
}

TEST(RandomHadamard, IsUnbiasedWithStochasticRounding) {
  const auto x = make_data("outlier", 256);
  const std::string spec = "hadamard(32,random=yes)|int4:block=64,rounding=stochastic";
  EXPECT_TRUE(make_codec(spec)->traits().unbiased);
  EXPECT_LT(worst(draw(spec, x, 2000)), 6);  // 256 elements at 2e-9 each.
  // The test sees what rounding to nearest does to a fixed rotation's outlier.
  EXPECT_FALSE(make_codec("hadamard(32)|int4:block=64")->traits().unbiased);
  EXPECT_GT(worst(draw("hadamard(32,random=yes)|int2:block=64", x, 2000)), 20);
}

TEST(Eden, LosesNothingAlongTheInput) {
  const auto x = make_data("normal", 512);
  const std::string rotated = "hadamard(128,random=yes)|";
  const Draws plain = draw(rotated + "int2:block=128", x, 1000);
  const Draws eden = draw(rotated + "eden(128)|int2:block=128", x, 1000);
  EXPECT_NEAR(eden.along, 1, 1e-5);
  EXPECT_GT(std::fabs(plain.along - 1), 0.02);
  // Bonferroni over 512 elements; rotations of 128 dimensions leave no bias that 1000 draws
  // show.
  EXPECT_LT(worst(eden), 6);
  EXPECT_GT(worst(plain), 8);
}

TEST(Eden, ErrsLessThanStochasticRounding) {
  const auto x = make_data("normal", 4096);
  EXPECT_LT(nmse("hadamard(128,random=yes)|eden(128)|int3:block=128", x),
            nmse("hadamard(128,random=yes)|int3:block=128,rounding=stochastic", x) / 1.5);
}

TEST(Eden, SpecsAreChecked) {
  EXPECT_EQ(make_codec("eden|int4")->spec(), "eden(block=128)|int4:block=128");
  EXPECT_EQ(make_codec("eden(32)|int4:block=64")->wire_bytes(128).scale,
            make_codec("int4:block=64")->wire_bytes(128).scale + 16);
  EXPECT_THAT(error_of("eden(48)|int4"), testing::HasSubstr("divides the inner one"));
  EXPECT_THAT(error_of("eden|ef21|int4"), testing::HasSubstr("without state"));
}

}  // namespace
}  // namespace zeropp::quant
