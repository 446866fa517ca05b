// Products against double, over dtypes, storage orders and odd sizes.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "quant/error.h"
#include "tests/zero/ops_reference.h"

namespace zeropp::zero {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests.

struct Size {
  std::int64_t m, k, n;
};
constexpr Size kSizes[] = {{1, 1, 1},    {1, 64, 257},  {257, 64, 1}, {3, 1, 5},
                           {17, 33, 65}, {128, 24, 40}, {65, 257, 31}};

/// a is m x k, b is k x n in the given storage, rows padded by 3 elements of NaN.
struct Operand {
  Operand(std::uint32_t stream, std::int64_t rows, std::int64_t cols, bool transposed,
          Dtype dtype)
      : logical(static_cast<std::size_t>(rows * cols)) {
    const std::int64_t stored_rows = transposed ? cols : rows;
    const std::int64_t stored_cols = transposed ? rows : cols, ld = stored_cols + 3;
    std::vector<float> storage(static_cast<std::size_t>(stored_rows * ld), std::nanf(""));
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        const auto at = static_cast<std::size_t>(i * cols + j);
        const auto x = static_cast<float>(centred(stream, static_cast<std::uint32_t>(at)));
        logical[at] = static_cast<double>(quant::round_to(dtype, x));
        storage[static_cast<std::size_t>(transposed ? j * ld + i : i * ld + j)] = x;
      }
    }
    data = tensor(storage, dtype);
    matrix = {data.view().data, dtype, rows, cols, ld, transposed};
  }
  Doubles logical;
  quant::Tensor data;
  ops::Matrix matrix;
};

class Matmul : public ::testing::TestWithParam<Dtype> {};

TEST_P(Matmul, MatchesDoubleInEveryStorage) {
  const Dtype dtype = GetParam();
  ops::Context ctx(nullptr);
  for (const Size s : kSizes) {
    for (const int bits : {0, 1, 2, 3}) {
      for (const Dtype out : {dtype, Dtype::kF32}) {
        SCOPED_TRACE(::testing::Message()
                     << s.m << "x" << s.k << "x" << s.n << " storage " << bits);
        const Operand a(1, s.m, s.k, (bits & 1) != 0, dtype);
        const Operand b(2, s.k, s.n, (bits & 2) != 0, dtype);
        const auto n = static_cast<std::size_t>(s.n);
        const quant::Tensor bias = tensor(noise(3, n), dtype);
        const std::vector<float> bias_values = values(bias);
        quant::Tensor c = blank(static_cast<std::size_t>(s.m) * n, out);
        ops::matmul(ctx, {.a = a.matrix,
                          .b = b.matrix,
                          .c = ops::mut_matrix(c.view(), s.m, s.n),
                          .bias = bias.view()});
        const std::vector<float> got = values(c);
        for (std::size_t i = 0; i < got.size(); ++i) {
          double want = static_cast<double>(bias_values[i % n]), size = std::abs(want);
          for (std::size_t k = 0; k < static_cast<std::size_t>(s.k); ++k) {
            const double term =
                a.logical[i / n * static_cast<std::size_t>(s.k) + k] * b.logical[k * n + i % n];
            want += term;
            size += std::abs(term);
          }
          const double bound =
              2e-7 * size * std::sqrt(static_cast<double>(s.k) + 1) +
              (out == Dtype::kF32 ? 0 : 1.01 * unit_roundoff(out) * std::abs(want) + 1e-7);
          ASSERT_NEAR(got[i], want, bound) << "element " << i;
        }
      }
    }
  }
}

TEST_P(Matmul, AccumulatesInFp32AndRespectsTheLeadingDimension) {
  ops::Context ctx(nullptr);
  const Operand a(4, 5, 7, false, GetParam()), b(5, 7, 6, true, GetParam());
  quant::Tensor once = blank(5 * 6), twice = tensor(std::vector<float>(5 * 9, 2.0F));
  ops::matmul(ctx, {.a = a.matrix, .b = b.matrix, .c = ops::mut_matrix(once.view(), 5, 6)});
  ops::matmul(ctx, {.a = a.matrix,
                    .b = b.matrix,
                    .c = {twice.view().data, Dtype::kF32, 5, 6, 9},
                    .accumulate = true});
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < 9; ++j) {
      const float want = j < 6 ? once.f32()[i * 6 + j] + 2.0F : 2.0F;
      EXPECT_NEAR(twice.f32()[i * 9 + j], want, 1e-6);
    }
  }
}

TEST_P(Matmul, NaNStaysNaN) {
  ops::Context ctx(nullptr);
  Operand a(6, 2, 3, false, GetParam()), b(7, 3, 4, false, GetParam());
  convert(quant::view(std::vector<float>{std::nanf("")}), a.data.view().slice(0, 1));
  quant::Tensor c = tensor(std::vector<float>(8, 0.0F), GetParam());
  ops::matmul(ctx, {.a = a.matrix, .b = b.matrix, .c = ops::mut_matrix(c.view(), 2, 4)});
  const std::vector<float> got = values(c);
  for (std::size_t j = 0; j < 4; ++j) {
    EXPECT_TRUE(std::isnan(got[j]));
    EXPECT_FALSE(std::isnan(got[4 + j]));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Matmul,
                         ::testing::Values(Dtype::kF32, Dtype::kBF16, Dtype::kF16), dtype_name);

TEST(MatmulErrors, NameShapesAndDtypes) {
  ops::Context ctx(nullptr);
  quant::Tensor a = blank(6), b = blank(6), c = blank(4), half = blank(6, Dtype::kBF16);
  const auto multiply = [&](const quant::Tensor& right, std::int64_t inner, bool sum) {
    ops::matmul(ctx, {.a = ops::matrix(a.view(), 2, 3),
                      .b = ops::matrix(right.view(), inner, 2),
                      .c = ops::mut_matrix(c.view(), 2, 2),
                      .bias = c.view().slice(0, sum ? 2 : 0),
                      .accumulate = sum});
  };
  EXPECT_THROW(multiply(b, 2, false), UsageError);
  EXPECT_THROW(multiply(half, 3, false), UsageError);
  EXPECT_THROW(multiply(b, 3, true), UsageError);
  try {
    multiply(b, 2, false);
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("2x3 times 2x2"), std::string::npos) << e.what();
  }
}

TEST(MatmulBackend, SaysWhatIsNative) {
  EXPECT_TRUE(ops::native_matmul(Dtype::kF32));
  EXPECT_FALSE(ops::native_matmul(Dtype::kF16));
  const char* native = ops::native_matmul(Dtype::kBF16) ? "bf16 native" : "bf16 widened";
  EXPECT_NE(ops::describe_backend().find(native), std::string::npos) << ops::describe_backend();
  EXPECT_NE(ops::describe_backend().find("fp16 widened"), std::string::npos);
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");  // Set by ctest's `.avx2` entries.
  if (limit != nullptr && std::string(limit) == "AVX2") {
    EXPECT_FALSE(ops::native_matmul(Dtype::kBF16));
    EXPECT_EQ(ops::describe_backend(), "avx2; matmul fp32 native, bf16 widened, fp16 widened");
  }
}

}  // namespace
}  // namespace zeropp::zero
