// Stochastic rounding and casts: unbiased, keyed, and counted.

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "quant/error.h"
#include "quant/registry.h"
#include "tests/quant/codec_data.h"

namespace zeropp::quant {
namespace {

using namespace testing_support;  // NOLINT

class Stochastic : public testing::TestWithParam<std::string> {};

TEST_P(Stochastic, MeanOfManyDecodesIsTheInput) {
  // Every element's mean over D draws lies within z sigma of x; one step's Bernoulli has sigma
  // <= step / 2. z = 6 holds all 512 elements together (Bonferroni: 512 * 2e-9 = 1e-6).
  constexpr std::size_t n = 512;
  constexpr int kDraws = 4000;
  const auto codec = make_codec(GetParam());
  ASSERT_TRUE(codec->traits().unbiased);
  const auto x = make_data("normal", n);
  std::vector<double> sum(n);
  for (int draw = 0; draw < kDraws; ++draw) {
    CodecContext ctx = context();
    ctx.step = static_cast<std::uint64_t>(draw);
    const auto y = decode(*codec, encode(*codec, view(x), ctx), n);
    for (std::size_t i = 0; i < n; ++i) sum[i] += y[i];
  }
  double bias = 0;
  const std::size_t block = codec->traits().block;
  for (std::size_t i = 0; i < n; ++i) {
    double absmax = 0;
    const std::size_t first = i / block * block;
    for (std::size_t j = first; j < std::min(n, first + block); ++j) {
      absmax = std::max<double>(absmax, std::fabs(x[j]));
    }
    const double sigma = absmax * codec->traits().max_error / 2 / std::sqrt(kDraws);
    const double error = sum[i] / kDraws - x[i];
    EXPECT_LE(std::fabs(error), 6 * sigma) << i;
    bias += error / sigma;
  }
  EXPECT_LE(std::fabs(bias) / std::sqrt(n), 6);  // Nor a small bias that all share.
}

TEST_P(Stochastic, KeysChangeTheNoise) {
  const auto codec = make_codec(GetParam());
  const auto x = make_data("normal", 5000);
  std::set<Bytes> seen{encode(*codec, view(x))};
  const auto with = [&](auto set) {
    CodecContext ctx = context();
    set(ctx);
    EXPECT_TRUE(seen.insert(encode(*codec, view(x), ctx)).second);
  };
  with([](CodecContext& c) { ++c.seed; });
  with([](CodecContext& c) { c.seed = 0; });  // A zero seed is a seed.
  with([](CodecContext& c) { ++c.tensor; });
  with([](CodecContext& c) { ++c.step; });
  with([](CodecContext& c) { ++c.micro; });
  with([](CodecContext& c) { ++c.sender; });
  with([](CodecContext& c) { ++c.part; });
  with([](CodecContext& c) { ++c.level; });
  with([](CodecContext& c) { c.second_hop = true; });
  with([](CodecContext& c) { c.role = Role::kWeight; });
}

TEST_P(Stochastic, RoundingErrorsOfRanksAndTensorsAreUncorrelated) {
  const auto codec = make_codec(GetParam());
  constexpr std::size_t n = 1 << 16;
  const auto x = make_data("normal", n);
  const auto error = [&](const CodecContext& ctx) {
    auto y = decode(*codec, encode(*codec, view(x), ctx), n);
    for (std::size_t i = 0; i < n; ++i) y[i] -= x[i];
    return y;
  };
  const auto mine = error(context());
  CodecContext tensor = context(), step = context();
  ++tensor.tensor;
  ++step.step;
  for (const CodecContext& ctx : {context(4), tensor, step}) {
    const auto other = error(ctx);
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t i = 0; i < n; ++i) {
      ab += double{mine[i]} * other[i];
      aa += double{mine[i]} * mine[i];
      bb += double{other[i]} * other[i];
    }
    EXPECT_LT(std::fabs(ab / std::sqrt(aa * bb)), 5 / 256.0);
  }
}

TEST_P(Stochastic, WholeStepsNeverMove) {
  // absmax is 127 (or 7) times a power of two, so the scale is that power and every multiple of
  // it, the largest too, is exact whatever the noise.
  const auto codec = make_codec(GetParam());
  const int top = GetParam().starts_with("int8") ? 127 : 7;
  for (const float step : {1.0F, 0x1p-40F, 0x1p60F}) {
    std::vector<float> x(10000);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const int q = i % 16 == 0 ? top : static_cast<int>(i * 7919 % (2 * top + 1)) - top;
      x[i] = static_cast<float>(q) * step;
    }
    for (std::uint32_t sender = 0; sender < 20; ++sender) {
      ASSERT_TRUE(decode(*codec, encode(*codec, view(x), context(sender)), x.size()) == x);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Stochastic,
                         testing::Values("int8:block=256,rounding=stochastic",
                                         "int4:block=128,rounding=stochastic",
                                         "int4:block=37,rounding=stochastic"),
                         [](const auto& i) { return "case" + std::to_string(i.index); });

TEST(Fp16Cast, CountsNumbersSentAsZero) {
  std::uint64_t count = 0;
  CodecContext ctx;
  ctx.underflow = &count;
  const std::vector<float> x{
      0.0F,       -0.0F,    0x1p-25F, -0x1p-25F, std::nextafter(0x1p-25F, 1.0F), 1.0F, 0x1p-30F,
      -0x1p-149F, 0x1p-24F, NAN,      INFINITY};
  const auto y =
      decode(*make_codec("fp16"), encode(*make_codec("fp16"), view(x), ctx), x.size());
  EXPECT_EQ(count, 4U);
  std::uint64_t zeros = 0;
  for (std::size_t i = 0; i < x.size(); ++i) zeros += x[i] != 0 && y[i] == 0 ? 1 : 0;
  EXPECT_EQ(zeros, count);
  encode(*make_codec("bf16"), view(x), ctx);
  EXPECT_EQ(count, 5U);  // + 2^-149, below bf16's smallest.
  encode(*make_codec("fp32"), view(x), ctx);
  EXPECT_EQ(count, 5U);
  encode(*make_codec("identity", Dtype::kF16), Numbers(Dtype::kBF16, x).view(), ctx);
  EXPECT_GE(count, 8U);
}

}  // namespace
}  // namespace zeropp::quant
