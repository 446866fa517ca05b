// Causal attention against a double reference and its central differences.

#include <gtest/gtest.h>

#include "tests/zero/ops_reference.h"

namespace zeropp::zero {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests.
using ops::AttentionShape;

Doubles reference(const AttentionShape& s, const Doubles& qkv) {
  const std::size_t w = s.width(), d = s.head_dim;
  Doubles out(s.batch * s.seq * w, 0), p(s.seq);
  for (std::size_t b = 0; b < s.batch; ++b) {
    for (std::size_t h = 0; h < s.heads; ++h) {
      const auto at = [&](std::size_t t, std::size_t part, std::size_t i) {
        return qkv[(b * s.seq + t) * 3 * w + part * w + h * d + i];
      };
      for (std::size_t t = 0; t < s.seq; ++t) {
        double sum = 0;
        for (std::size_t u = 0; u <= t; ++u) {
          double dot = 0;
          for (std::size_t i = 0; i < d; ++i) dot += at(t, 0, i) * at(u, 1, i);
          sum += p[u] = std::exp(dot / std::sqrt(static_cast<double>(d)));
        }
        for (std::size_t u = 0; u <= t; ++u) {
          for (std::size_t i = 0; i < d; ++i) {
            out[(b * s.seq + t) * w + h * d + i] += p[u] / sum * at(u, 2, i);
          }
        }
      }
    }
  }
  return out;
}

struct Result {
  std::vector<float> out, dqkv;
};

Result run(const AttentionShape& s, const std::vector<float>& qkv,
           const std::vector<float>& dout, Dtype dtype) {
  ops::Context ctx(nullptr);
  const quant::Tensor x = tensor(qkv, dtype), dy = tensor(dout, dtype);
  quant::Tensor y = blank(dout.size(), dtype), dx = blank(qkv.size(), dtype);
  quant::Tensor stats = blank(s.stats());
  ops::attention_forward(ctx, s, x.view(), y.view(), stats.f32());
  ops::attention_backward(ctx, s, x.view(), dy.view(), stats.f32(), dx.view());
  return {values(y), values(dx)};
}

std::vector<float> inputs(const AttentionShape& s, std::uint32_t stream, double scale) {
  return noise(stream, s.batch * s.seq * 3 * s.width(), scale);
}

TEST(Attention, MatchesCentralDifferences) {
  for (const AttentionShape s : {AttentionShape{1, 1, 1, 1}, AttentionShape{1, 1, 2, 5},
                                 AttentionShape{2, 5, 3, 4}, AttentionShape{1, 17, 1, 3}}) {
    const std::vector<float> qkv = inputs(s, 1, 4),
                             dout = noise(2, s.batch * s.seq * s.width());
    const Result got = run(s, qkv, dout, Dtype::kF32);
    const auto f = [&](const Doubles& x) { return reference(s, x); };
    EXPECT_LT(worst(got.out, f(to_double(qkv))), 1e-6) << s.seq;
    const Doubles want = numeric_gradient(f, to_double(qkv), to_double(dout));
    EXPECT_LT(worst(got.dqkv, want), 2e-6) << s.seq;
  }
}

/// Several tiles of queries, the last one short: forward in full, backward by directions.
TEST(Attention, TilesJoin) {
  const AttentionShape s{1, 300, 2, 8};
  const std::vector<float> qkv = inputs(s, 3, 4), dout = noise(4, s.seq * s.width());
  const Result got = run(s, qkv, dout, Dtype::kF32);
  EXPECT_LT(worst(got.out, reference(s, to_double(qkv))), 2e-6);
  for (std::uint32_t direction = 0; direction < 4; ++direction) {
    const double h = 1e-5;
    Doubles plus = to_double(qkv), minus = plus;
    double slope = 0, size = 0, numeric = 0;
    for (std::uint32_t i = 0; i < qkv.size(); ++i) {
      const double e = centred(10 + direction, i);
      plus[i] += h * e;
      minus[i] -= h * e;
      slope += e * static_cast<double>(got.dqkv[i]);
      size += std::abs(e * static_cast<double>(got.dqkv[i]));
    }
    const Doubles high = reference(s, plus), low = reference(s, minus);
    for (std::size_t i = 0; i < dout.size(); ++i) {
      numeric += static_cast<double>(dout[i]) * (high[i] - low[i]) / (2 * h);
    }
    EXPECT_NEAR(slope, numeric, 1e-7 * size);
  }
}

TEST(Attention, LaterTokensChangeNothingEarlier) {
  const AttentionShape s{1, 140, 1, 4};
  std::vector<float> qkv = inputs(s, 5, 1);
  const std::vector<float> dout(s.seq * s.width(), 1.0F);
  const Result before = run(s, qkv, dout, Dtype::kF32);
  for (std::size_t i = 131 * 3 * s.width(); i < qkv.size(); ++i) qkv[i] = 1000 - qkv[i];
  const Result after = run(s, qkv, dout, Dtype::kF32);
  for (std::size_t i = 0; i < 131 * s.width(); ++i) ASSERT_EQ(before.out[i], after.out[i]) << i;
  EXPECT_NE(before.out[131 * s.width()], after.out[131 * s.width()]);
}

TEST(Attention, LargeScoresDoNotOverflow) {
  const AttentionShape s{1, 20, 1, 4};
  const Result got = run(s, inputs(s, 6, 2000), std::vector<float>(80, 1.0F), Dtype::kF32);
  for (const float v : got.out) EXPECT_TRUE(std::isfinite(v));
  for (const float v : got.dqkv) EXPECT_TRUE(std::isfinite(v));
}

class HalfAttention : public ::testing::TestWithParam<Dtype> {};

/// Beside the result, P (for P V and P^T dY) and dS are rounded: a few roundings of terms that
/// are no larger than the largest result here.
TEST_P(HalfAttention, StaysNearFp32) {
  const AttentionShape s{2, 150, 2, 16};
  const std::vector<float> qkv = rounded(inputs(s, 7, 4), GetParam());
  const std::vector<float> dout = rounded(noise(8, s.batch * s.seq * s.width()), GetParam());
  const Result want = run(s, qkv, dout, Dtype::kF32), got = run(s, qkv, dout, GetParam());
  EXPECT_LT(worst(got.out, to_double(want.out)), unit_roundoff(GetParam()));
  EXPECT_LT(worst(got.dqkv, to_double(want.dqkv)), 2 * unit_roundoff(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, HalfAttention, ::testing::Values(Dtype::kBF16, Dtype::kF16),
                         dtype_name);

}  // namespace
}  // namespace zeropp::zero
