// GELU, norms, column sums, embedding and cross-entropy: fp32 against double and its central
// differences; 16-bit results are the fp32 results of the same inputs, rounded once.

#include <gtest/gtest.h>

#include "tests/zero/ops_reference.h"

namespace zeropp::zero {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests.

Doubles gelu(const Doubles& x) {
  Doubles y;
  for (const double v : x) {
    y.push_back(v / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))));
  }
  return y;
}

TEST(Gelu, RelativeErrorIsSmallEverywhere) {
  std::vector<float> x;
  for (float v = -5; v < 12; v += 0.001F) x.push_back(v);
  quant::Tensor y = blank(x.size());
  ops::gelu_forward(quant::view(x), y.view());
  for (std::size_t i = 0; i < x.size(); ++i) {
    // 1 + tanh cancels in the textbook form, so double itself is compared as a sigmoid.
    const double v = static_cast<double>(x[i]);
    const double want =
        v / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    // The argument's own rounding is amplified by its size, up to 17.
    ASSERT_NEAR(y.f32()[i], want, 4e-6 * std::abs(want) + 1e-37) << v;
    ASSERT_NEAR(y.f32()[i], gelu({v})[0], 1e-6) << v;
  }
}

TEST(Gelu, GradientMatchesCentralDifferencesForEverySize) {
  for (std::size_t n = 1; n < 50; ++n) {
    const std::vector<float> x = noise(1, n, 8), dy = noise(2, n);
    quant::Tensor dx = tensor(dy);
    ops::gelu_backward(quant::view(x), dx.view());
    EXPECT_LT(worst(values(dx), numeric_gradient(gelu, to_double(x), to_double(dy))), 1e-6);
  }
}

TEST(Gelu, ExtremesAndNaN) {
  const std::vector<float> x = {1e20F, -1e20F, 1000.0F, -1000.0F, 0.0F, std::nanf("")};
  quant::Tensor y = blank(x.size()), dx = tensor(std::vector<float>(x.size(), 1.0F));
  ops::gelu_forward(quant::view(x), y.view());
  ops::gelu_backward(quant::view(std::span(x).subspan(2)), dx.view().slice(2, 4));
  EXPECT_EQ(y.f32()[0], 1e20F);
  EXPECT_EQ(y.f32()[1], 0.0F);
  EXPECT_EQ(y.f32()[2], 1000.0F);
  EXPECT_EQ(y.f32()[3], 0.0F);
  EXPECT_TRUE(std::isnan(y.f32()[5]));
  EXPECT_EQ(dx.f32()[2], 1.0F);
  EXPECT_EQ(dx.f32()[3], 0.0F);
  EXPECT_EQ(dx.f32()[4], 0.5F);
  EXPECT_TRUE(std::isnan(dx.f32()[5]));
}

struct NormCase {
  std::size_t rows, cols;
  std::vector<float> x, w, b, dy, residual;
  NormCase(std::size_t r, std::size_t c)
      : rows(r),
        cols(c),
        x(noise(1, r * c, 3)),
        w(noise(2, c)),
        b(noise(3, c)),
        dy(noise(4, r * c)),
        residual(noise(5, r * c)) {}
};

struct NormResult {
  std::vector<float> y, dx, dw, db;
};

NormResult run(const NormCase& c, Dtype dtype) {
  ops::Context ctx(nullptr);
  const quant::Tensor x = tensor(c.x, dtype), w = tensor(c.w, dtype), b = tensor(c.b, dtype),
                      dy = tensor(c.dy, dtype);
  quant::Tensor y = blank(c.x.size(), dtype), dx = tensor(c.residual, dtype);
  quant::Tensor dw = blank(c.cols, dtype), db = blank(c.cols, dtype), stats = blank(2 * c.rows);
  ops::layer_norm_forward({.x = x.view(),
                           .weight = w.view(),
                           .bias = b.view(),
                           .y = y.view(),
                           .mean = stats.f32(),
                           .rstd = stats.f32() + c.rows,
                           .rows = c.rows,
                           .cols = c.cols,
                           .eps = 1e-5F});
  ops::layer_norm_backward(ctx, {.x = x.view(),
                                 .weight = w.view(),
                                 .dy = dy.view(),
                                 .mean = stats.f32(),
                                 .rstd = stats.f32() + c.rows,
                                 .dx = dx.view(),
                                 .dweight = dw.view(),
                                 .dbias = db.view(),
                                 .rows = c.rows,
                                 .cols = c.cols});
  return {values(y), values(dx), values(dw), values(db)};
}

/// x | w | b in one vector, so that one call differentiates all.
Doubles norm_reference(const NormCase& c, const Doubles& all) {
  Doubles y(c.rows * c.cols);
  const double n = static_cast<double>(c.cols);
  for (std::size_t r = 0; r < c.rows; ++r) {
    const double* x = all.data() + r * c.cols;
    double mean = 0, var = 0;
    for (std::size_t i = 0; i < c.cols; ++i) mean += x[i] / n;
    for (std::size_t i = 0; i < c.cols; ++i) var += (x[i] - mean) * (x[i] - mean) / n;
    for (std::size_t i = 0; i < c.cols; ++i) {
      y[r * c.cols + i] = (x[i] - mean) / std::sqrt(var + 1e-5) * all[c.rows * c.cols + i] +
                          all[(c.rows + 1) * c.cols + i];
    }
  }
  return y;
}

TEST(LayerNorm, MatchesCentralDifferences) {
  for (const std::size_t cols : {2U, 15U, 16U, 17U, 33U, 48U}) {
    for (const std::size_t rows : {1U, 3U}) {
      const NormCase c(rows, cols);
      const NormResult got = run(c, Dtype::kF32);
      Doubles all = to_double(c.x);
      for (const auto* part : {&c.w, &c.b}) all.insert(all.end(), part->begin(), part->end());
      const auto f = [&](const Doubles& x) { return norm_reference(c, x); };
      EXPECT_LT(worst(got.y, f(all)), 1e-6);
      Doubles want = numeric_gradient(f, all, to_double(c.dy));
      for (std::size_t i = 0; i < c.x.size(); ++i)
        want[i] += static_cast<double>(c.residual[i]);
      std::vector<float> grads = got.dx;
      for (const auto* part : {&got.dw, &got.db}) {
        grads.insert(grads.end(), part->begin(), part->end());
      }
      EXPECT_LT(worst(grads, want), 2e-6) << rows << " x " << cols;
    }
  }
}

TEST(LayerNorm, OneColumnIsTheBias) {
  const NormResult got = run(NormCase(2, 1), Dtype::kF32);
  EXPECT_EQ(got.y[0], noise(3, 1)[0]);
  EXPECT_EQ(got.dw[0], 0.0F);
}

TEST(ColumnSums, MatchDouble) {
  for (const std::size_t cols : {1U, 15U, 64U, 80U, 131U}) {
    const std::vector<float> x = noise(1, 37 * cols);
    Doubles want(cols, 0);
    for (std::size_t i = 0; i < x.size(); ++i) want[i % cols] += static_cast<double>(x[i]);
    ops::Context ctx(nullptr);
    quant::Tensor sums = blank(cols);
    ops::column_sums(ctx, quant::view(x), 37, cols, sums.view());
    EXPECT_LT(worst(values(sums), want), 2e-6) << cols;
  }
}

struct Entropy {
  std::size_t rows, vocab;
  std::vector<float> logits;
  std::vector<std::int32_t> targets;
  ops::CrossEntropy args() const { return {logits.data(), targets, rows, vocab}; }
};

double entropy_reference(const Entropy& e, const Doubles& logits) {
  double total = 0, count = 0;
  for (std::size_t r = 0; r < e.rows; ++r) {
    if (e.targets[r] < 0) continue;
    double sum = 0;
    for (std::size_t i = 0; i < e.vocab; ++i) sum += std::exp(logits[r * e.vocab + i]);
    total += std::log(sum) - logits[r * e.vocab + static_cast<std::size_t>(e.targets[r])];
    ++count;
  }
  return total / count;
}

TEST(CrossEntropy, MatchesCentralDifferencesAndWorksInPlace) {
  for (const std::size_t vocab : {2U, 16U, 33U, 257U}) {
    Entropy e{3, vocab, noise(1, 3 * vocab, 8), {0, -1, static_cast<std::int32_t>(vocab) - 1}};
    quant::Tensor stats = blank(6), d = blank(3 * vocab);
    EXPECT_NEAR(ops::cross_entropy_forward(e.args(), stats.f32()),
                entropy_reference(e, to_double(e.logits)), 1e-6);
    ops::cross_entropy_backward(e.args(), stats.f32(), 0.5F, d.view());
    const auto f = [&](const Doubles& x) { return Doubles{entropy_reference(e, x)}; };
    EXPECT_LT(worst(values(d), numeric_gradient(f, to_double(e.logits), {0.5})), 2e-6);
    const std::vector<float> want = values(d);
    ops::cross_entropy_backward(e.args(), stats.f32(), 0.5F, quant::mut_view(e.logits));
    EXPECT_EQ(e.logits, want) << "in place";
  }
}

TEST(CrossEntropy, AllMaskedIsZeroAndHugeLogitsAreFinite) {
  Entropy e{2, 5, noise(1, 10, 1e30), {-1, -100}};
  quant::Tensor stats = blank(4), d = blank(10);
  EXPECT_EQ(ops::cross_entropy_forward(e.args(), stats.f32()), 0.0);
  ops::cross_entropy_backward(e.args(), stats.f32(), 1, d.view());
  EXPECT_EQ(values(d), std::vector<float>(10, 0.0F));
  e.vocab = 1;
  e.targets = {0, 0};
  EXPECT_EQ(ops::cross_entropy_forward(e.args(), stats.f32()), 0.0) << "one class is certain";
  e.vocab = 5;
  e.targets = {1, 2};
  EXPECT_TRUE(std::isfinite(ops::cross_entropy_forward(e.args(), stats.f32())));
  e.logits[0] = std::nanf("");
  EXPECT_TRUE(std::isnan(ops::cross_entropy_forward(e.args(), stats.f32())));
}

TEST(Embedding, AddsPositionsAndSumsGradients) {
  const ops::EmbeddingShape s{2, 3, 5, 4, 6};
  const std::vector<std::int32_t> tokens = {3, 0, 3, 1, 3, 0};
  const std::vector<float> wte = noise(1, 20), wpe = noise(2, 30), dx = noise(3, 30);
  quant::Tensor x = blank(30), dwpe = blank(30);
  ops::embedding_forward(s, tokens, quant::view(wte), quant::view(wpe), x.view());
  std::vector<float> dwte(20, 1.0F), want_dwte = dwte, want_dwpe(30, 0.0F);
  for (std::size_t i = 0; i < 30; ++i) {
    const std::size_t row = i / 5, token = static_cast<std::size_t>(tokens[row]) * 5 + i % 5;
    const std::size_t position = row % 3 * 5 + i % 5;
    EXPECT_EQ(x.f32()[i], wte[token] + wpe[position]);
    want_dwte[token] += dx[i];
    want_dwpe[position] += dx[i];
  }
  ops::Context ctx(nullptr);
  ops::embedding_backward(ctx, s, tokens, quant::view(dx), dwte, dwpe.view());
  EXPECT_EQ(dwte, want_dwte);
  EXPECT_EQ(values(dwpe), want_dwpe);
}

class RoundedOnce : public ::testing::TestWithParam<Dtype> {};

TEST_P(RoundedOnce, Gelu) {
  const Dtype dtype = GetParam();
  const std::vector<float> x = rounded(noise(1, 131, 12), dtype),
                           dy = rounded(noise(2, 131), dtype);
  quant::Tensor y32 = blank(131), y16 = blank(131, dtype), d32 = tensor(dy),
                d16 = tensor(dy, dtype);
  ops::gelu_forward(quant::view(x), y32.view());
  ops::gelu_forward(tensor(x, dtype).view(), y16.view());
  EXPECT_EQ(values(y16), rounded(values(y32), dtype));
  ops::gelu_backward(quant::view(x), d32.view());
  ops::gelu_backward(tensor(x, dtype).view(), d16.view());
  EXPECT_EQ(values(d16), rounded(values(d32), dtype));
}

TEST_P(RoundedOnce, LayerNorm) {
  NormCase c(5, 37);
  for (auto* v : {&c.x, &c.w, &c.b, &c.dy, &c.residual}) *v = rounded(*v, GetParam());
  const NormResult wide = run(c, Dtype::kF32), narrow = run(c, GetParam());
  EXPECT_EQ(narrow.y, rounded(wide.y, GetParam()));
  EXPECT_EQ(narrow.dx, rounded(wide.dx, GetParam()));
  EXPECT_EQ(narrow.dw, rounded(wide.dw, GetParam()));
  EXPECT_EQ(narrow.db, rounded(wide.db, GetParam()));
}

TEST_P(RoundedOnce, ColumnSumsAndCrossEntropy) {
  const std::vector<float> x = rounded(noise(1, 13 * 70, 4), GetParam());
  ops::Context ctx(nullptr);
  quant::Tensor wide = blank(70), narrow = blank(70, GetParam());
  ops::column_sums(ctx, quant::view(x), 13, 70, wide.view());
  ops::column_sums(ctx, tensor(x, GetParam()).view(), 13, 70, narrow.view());
  EXPECT_EQ(values(narrow), rounded(values(wide), GetParam()));

  const Entropy e{13, 70, x, std::vector<std::int32_t>(13, 7)};
  quant::Tensor stats = blank(26), d32 = blank(x.size()), d16 = blank(x.size(), GetParam());
  ops::cross_entropy_forward(e.args(), stats.f32());
  ops::cross_entropy_backward(e.args(), stats.f32(), 1024, d32.view());
  ops::cross_entropy_backward(e.args(), stats.f32(), 1024, d16.view());
  EXPECT_EQ(values(d16), rounded(values(d32), GetParam()));
}

/// Subnormals, ties, the overflow threshold, infinities: as quant::convert, through GELU's
/// identity for large x and through sums of one row.
TEST_P(RoundedOnce, ConversionsAgreeWithQuant) {
  std::vector<float> x = {0.0F,           -0.0F,       1e-8F,
                          3e-8F,          6e-8F,       -5.9e-8F,
                          6.1e-5F,        65504,       65519.9F,
                          65520,          -65520,      1e30F,
                          3.3e38F,        1.00390625F, 1.01171875F,
                          2049,           2051,        std::numeric_limits<float>::infinity(),
                          1.1754944e-38F, 1e-40F};
  for (const float v : noise(9, 200)) x.push_back(std::exp(60 * v));
  ops::Context ctx(nullptr);
  for (const float v : rounded(x, GetParam())) {
    quant::Tensor sum = blank(1, GetParam());
    ops::column_sums(ctx, tensor({v}, GetParam()).view(), 1, 1, sum.view());
    EXPECT_EQ(values(sum)[0], v);
    if (v < 20) continue;
    quant::Tensor y = blank(1, GetParam());
    ops::gelu_forward(tensor({v}, GetParam()).view(), y.view());
    EXPECT_EQ(values(y)[0], v);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RoundedOnce, ::testing::Values(Dtype::kBF16, Dtype::kF16),
                         dtype_name);

}  // namespace
}  // namespace zeropp::zero
