#include "quant/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "quant/convert.h"
#include "quant/error.h"

namespace zeropp::quant {
namespace {

ErrorMetrics measure(const std::vector<float>& x, const std::vector<float>& y) {
  ErrorSums sums;
  sums.add(view(x), view(y));
  return sums.metrics();
}

TEST(Metrics, ByHand) {
  const auto m = measure({3, 4}, {4, 4});
  EXPECT_DOUBLE_EQ(m.nmse, 1.0 / 25);
  EXPECT_DOUBLE_EQ(m.sqnr_db, -10 * std::log10(1.0 / 25));
  EXPECT_DOUBLE_EQ(m.cosine, 28 / (5 * std::sqrt(32)));
  EXPECT_DOUBLE_EQ(m.bias, 0.5 / std::sqrt(12.5));
  EXPECT_DOUBLE_EQ(m.max_abs, 1);
  EXPECT_DOUBLE_EQ(m.norm_ratio, std::sqrt(32) / 5);
  EXPECT_EQ(m.n, 2U);
}

TEST(Metrics, EqualZeroAndEmpty) {
  EXPECT_EQ(measure({1, 2}, {1, 2}).nmse, 0);
  EXPECT_EQ(measure({1, 2}, {1, 2}).sqnr_db, INFINITY);
  const auto zero = measure({0, 0}, {0, 0});
  EXPECT_EQ(zero.nmse, 0);
  EXPECT_EQ(zero.cosine, 1);
  EXPECT_EQ(zero.norm_ratio, 1);
  EXPECT_EQ(measure({0}, {1}).nmse, INFINITY);
  EXPECT_EQ(measure({}, {}).nmse, 0);
  EXPECT_EQ(measure({}, {}).cosine, 1);
}

TEST(Metrics, NanShows) {
  const auto m = measure({1, 2, 3}, {1, NAN, 3});
  EXPECT_TRUE(std::isnan(m.nmse));
  EXPECT_TRUE(std::isnan(m.max_abs));
}

TEST(Metrics, SpansAddUp) {
  std::vector<float> x, y;
  for (int i = 0; i < 5000; ++i) {
    x.push_back(static_cast<float>(i % 17) - 8);
    y.push_back(x.back() + 0.25F * static_cast<float>(i % 3));
  }
  ErrorSums whole, parts, other;
  whole.add(view(x), view(y));
  parts.add(view(x).slice(0, 1234), view(y).slice(0, 1234));
  other.add(view(x).slice(1234, 3766), view(y).slice(1234, 3766));
  parts.add(other);
  EXPECT_DOUBLE_EQ(parts.metrics().nmse, whole.metrics().nmse);
  EXPECT_DOUBLE_EQ(parts.metrics().bias, whole.metrics().bias);
  EXPECT_EQ(parts.metrics().max_abs, whole.metrics().max_abs);
  EXPECT_EQ(parts.n, 5000U);
}

TEST(Metrics, DtypesMix) {
  const std::vector<float> x{1, 2, 3};
  std::vector<std::uint16_t> y{bf16_bits(1), bf16_bits(2), bf16_bits(3.5F)};
  ErrorSums sums;
  sums.add(view(x), {y.data(), Dtype::kBF16, 3});
  EXPECT_EQ(sums.max_abs, 0.5);
  EXPECT_THROW(sums.add(view(x), view(x).slice(0, 2)), UsageError);
}

}  // namespace
}  // namespace zeropp::quant
