// The errors of `zeropp codecs --measure` against values known otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "experiments/codecs/families.h"
#include "experiments/codecs/measure.h"
#include "quant/convert.h"
#include "quant/error.h"
#include "quant/metrics.h"
#include "quant/registry.h"

namespace zeropp::experiments {
namespace {

using quant::Dtype;

CodecError measure(const std::string& spec, const std::string& family, std::size_t n,
                   int roundings = 16, int ranks = 8, int group = 4) {
  return measure_error(*quant::make_codec(spec),
                       family_codec_data(family, Dtype::kF32, n, ranks), group, roundings);
}

TEST(CodecMeasure, ExactCodecsHaveNoError) {
  const CodecError e = measure("fp32", "normal", 1000);
  EXPECT_EQ(e.bits_per_element, 32);
  EXPECT_EQ(e.nmse, 0);
  EXPECT_TRUE(std::isinf(e.sqnr_db));
  EXPECT_EQ(e.bias, 0);
  EXPECT_EQ(e.max_error, 0);
  EXPECT_LT(e.vnmse_one_hop, 1e-13);
  EXPECT_LT(e.vnmse_two_hop, 1e-13);
  EXPECT_LT(e.vnmse_ring, 1e-13);
}

TEST(CodecMeasure, BitsCountScalesAndPadding) {
  // 1000 numbers: 8 blocks of 128 with 4 bytes each, and 4 bits a number.
  EXPECT_DOUBLE_EQ(measure("int4:block=128", "normal", 1000).bits_per_element,
                   8.0 * (8 * 4 + 500) / 1000);
  EXPECT_DOUBLE_EQ(measure("int8:block=64", "normal", 1).bits_per_element, 8.0 * 5);
}

TEST(CodecMeasure, ErrorOfNearestRoundingIsTheUniformOne) {
  // A block of n normals: steps of absmax / 127, and an error of step^2 / 12.
  const std::size_t n = 20000;
  const CodecData data = family_codec_data("normal", Dtype::kF32, n, 1);
  double absmax = 0, squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    absmax = std::max<double>(absmax, std::fabs(data.by_rank[0].f32()[i]));
    squares += std::pow(double{data.by_rank[0].f32()[i]}, 2);
  }
  const double step = absmax / 127, expected = step * step / 12 * n / squares;
  const CodecError e = measure_error(*quant::make_codec("int8:block=20000"), data, 1, 16);
  EXPECT_NEAR(e.nmse / expected, 1, 0.05);
  EXPECT_NEAR(e.sqnr_db, -10 * std::log10(e.nmse), 1e-9);
  EXPECT_EQ(e.roundings, 1);
  EXPECT_DOUBLE_EQ(e.bias, std::sqrt(e.nmse));
  EXPECT_LE(e.max_error, step / 2 * 1.00001);
  EXPECT_GT(e.max_error, step / 2 * 0.9);
  EXPECT_GT(e.cosine, 0.9999);
}

TEST(CodecMeasure, StochasticRoundingIsUnbiasedAndNearestIsNot) {
  const auto stochastic = measure("int4:rounding=stochastic", "normal", 20000, 32);
  EXPECT_EQ(stochastic.roundings, 32);
  EXPECT_EQ(stochastic.bias_low, 0);
  EXPECT_GT(stochastic.bias_high, 0);
  // Far below the error of one rounding, and below what the mean of 32 still varies.
  EXPECT_LT(stochastic.bias_high, 0.1 * std::sqrt(stochastic.nmse));
  const auto nearest = measure("int4", "normal", 20000, 32);
  EXPECT_LT(nearest.nmse, stochastic.nmse);
}

/// Adds a bias of known size to what int4 with stochastic rounding decodes.
class Biased final : public quant::Codec {
 public:
  explicit Biased(float bias) : bias_(bias) {}
  const std::string& spec() const override { return inner_->spec(); }
  quant::CodecTraits traits() const override { return inner_->traits(); }
  quant::WireBytes wire_bytes(std::size_t n) const override { return inner_->wire_bytes(n); }
  std::size_t encode(quant::ConstView x, const quant::CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    return inner_->encode(x, ctx, wire);
  }
  void decode(std::span<const std::byte> wire, quant::MutView out) const override {
    std::vector<float> y(out.n);
    inner_->decode(wire, quant::mut_view(y));
    for (float& v : y) v += bias_;
    quant::convert(quant::view(y), out);
  }

 private:
  quant::CodecPtr inner_ = quant::make_codec("int4:rounding=stochastic");
  float bias_;
};

TEST(CodecMeasure, FindsABiasOfKnownSize) {
  const CodecData data = family_codec_data("normal", Dtype::kF32, 20000, 1);
  for (const float bias : {0.02F, 0.3F}) {
    const CodecError e = measure_error(Biased(bias), data, 1, 24);
    // ||bias|| / ||x|| where the numbers have variance 1.
    EXPECT_NEAR(e.bias / bias, 1, 0.1) << bias;
    EXPECT_LT(e.bias_low, bias * 1.02);
    EXPECT_GT(e.bias_high, bias * 0.98);
    EXPECT_GT(e.bias_low, bias * 0.8);
  }
}

TEST(CodecMeasure, HopsAddError) {
  const CodecError e = measure("int4:rounding=stochastic", "normal", 20000);
  // Independent errors average as independent numbers do: one hop keeps the NMSE.
  EXPECT_NEAR(e.vnmse_one_hop / e.nmse, 1, 0.1);
  EXPECT_GT(e.vnmse_two_hop, 1.5 * e.vnmse_one_hop);
  EXPECT_LT(e.vnmse_two_hop, 2.5 * e.vnmse_one_hop);
  // N - 1 roundings of sums of 1 .. N - 1 ranks: (N - 1) / 2 of one rounding of the sum.
  EXPECT_NEAR(e.vnmse_ring / e.nmse, 3.5, 0.5);
}

TEST(CodecMeasure, HopsTellSendersTheirPlace) {
  // Ranks with the same numbers: errors that are correlated over a hop cancel in its mean.
  CodecData data{.name = "same", .by_rank = {}};
  for (int r = 0; r < 8; ++r) {
    data.by_rank.push_back(family_data("normal", Dtype::kF32, 20000, 0));
  }
  const auto error = [&](const char* rounding) {
    return measure_error(*quant::make_codec(std::string("int4:rounding=") + rounding), data, 4,
                         4);
  };
  const CodecError alone = error("stochastic"), together = error("correlated");
  // Of n independent errors 1/n is left; spread evenly, of the order of 1/n^2.
  EXPECT_NEAR(alone.vnmse_one_hop / alone.nmse, 1.0 / 8, 0.02);
  EXPECT_LT(together.vnmse_one_hop, 0.5 * alone.vnmse_one_hop);
  EXPECT_LT(together.vnmse_two_hop, 0.7 * alone.vnmse_two_hop);
}

TEST(CodecMeasure, FamiliesAreWhatTheySay) {
  const std::size_t n = 20000;
  const auto metrics = [&](std::string_view family, Dtype dtype) {
    quant::Tensor x = family_data(family, dtype, n, 0),
                  wide(nullptr, quant::MemoryKind::kHost, Dtype::kF32, n);
    quant::convert(x.view(), wide.view());
    return wide;
  };
  const auto moment = [&](const quant::Tensor& x, double power) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += std::pow(std::fabs(double{x.f32()[i]}), power);
    return sum / n;
  };
  EXPECT_NEAR(moment(metrics("normal", Dtype::kF32), 2), 1, 0.05);
  EXPECT_NEAR(moment(metrics("normal", Dtype::kF32), 4), 3, 0.2);
  EXPECT_NEAR(moment(metrics("heavy-tailed", Dtype::kF32), 2), 1, 0.3);
  EXPECT_GT(moment(metrics("heavy-tailed", Dtype::kF32), 4), 8);
  const quant::Tensor sparse = metrics("sparse", Dtype::kF32);
  const auto zeros = std::count(sparse.f32(), sparse.f32() + n, 0.0F);
  EXPECT_NEAR(static_cast<double>(zeros) / n, 0.99, 0.003);
  EXPECT_EQ(metrics("outlier", Dtype::kF32).f32()[n / 2], 1e4F);
  for (const auto& [dtype, least] :
       {std::pair{Dtype::kF32, 0x1p-126}, {Dtype::kBF16, 0x1p-126}, {Dtype::kF16, 0x1p-14}}) {
    const quant::Tensor x = metrics("denormal", dtype);
    EXPECT_GT(moment(x, 1), least / 4);
    EXPECT_LE(*std::max_element(x.f32(), x.f32() + n), least);
  }
  EXPECT_THROW(family_data("banana", Dtype::kF32, 1, 0), UsageError);
}

TEST(CodecMeasure, RanksOfATensorAreItsRotations) {
  const quant::Tensor x = family_data("normal", Dtype::kF32, 10, 0);
  const CodecData data = tensor_codec_data("w", x, Dtype::kF32, 3);
  ASSERT_EQ(data.by_rank.size(), 3U);
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < 10; ++i) {
      EXPECT_EQ(data.by_rank[r].f32()[i], x.f32()[(i + 3 * r) % 10]);
    }
  }
}

TEST(CodecMeasure, RatesArePositive) {
  const CodecSpeed s = measure_speed(*quant::make_codec("int8"),
                                     family_codec_data("normal", Dtype::kBF16, 5000, 2), 3);
  for (const Rate& r : {s.encode, s.decode, s.reduce_encode, s.copy}) {
    EXPECT_GT(r.median, 0);
    EXPECT_GE(r.spread, 0);
  }
}

}  // namespace
}  // namespace zeropp::experiments
