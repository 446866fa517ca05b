// Small floats against the host conversions of CUDA's headers: an independent implementation.

#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include "quant/float_formats.h"
#include "quant/rng.h"
#include "tests/quant/codec_data.h"

namespace zeropp::quant {
namespace {

int theirs(E4M3, float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); }
int theirs(E5M2, float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E5M2); }
int theirs(E2M3, float v) { return __nv_cvt_float_to_fp6(v, __NV_E2M3, cudaRoundNearest); }
int theirs(E3M2, float v) { return __nv_cvt_float_to_fp6(v, __NV_E3M2, cudaRoundNearest); }
int theirs(E2M1, float v) { return __nv_cvt_float_to_fp4(v, __NV_E2M1, cudaRoundNearest); }

float from_half(__half_raw h) { return from_f16_bits(h.x); }
float their_value(E4M3, int c) {
  return from_half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(c), __NV_E4M3));
}
float their_value(E5M2, int c) {
  return from_half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(c), __NV_E5M2));
}
float their_value(E2M3, int c) {
  return from_half(__nv_cvt_fp6_to_halfraw(static_cast<__nv_fp6_storage_t>(c), __NV_E2M3));
}
float their_value(E3M2, int c) {
  return from_half(__nv_cvt_fp6_to_halfraw(static_cast<__nv_fp6_storage_t>(c), __NV_E3M2));
}
float their_value(E2M1, int c) {
  return from_half(__nv_cvt_fp4_to_halfraw(static_cast<__nv_fp4_storage_t>(c), __NV_E2M1));
}

template <class F>
class CudaFloat : public testing::Test {};
using Formats = testing::Types<E4M3, E5M2, E2M3, E3M2, E2M1>;
TYPED_TEST_SUITE(CudaFloat, Formats);

TYPED_TEST(CudaFloat, SameCodes) {
  using F = TypeParam;
  const auto check = [](float v) {
    for (const float x : {v, -v, std::nextafter(v, 0.0F), std::nextafter(v, INFINITY)}) {
      ASSERT_EQ(F::encode(x), theirs(F(), x)) << x;
    }
  };
  for (int code = 0; code < F::kTop; ++code) {
    const float low = F::decode(static_cast<std::uint8_t>(code));
    const float high = F::decode(static_cast<std::uint8_t>(code + 1));
    check(low);
    check((low + high) / 2);
  }
  check(F::kMax);
  check(F::kMax * 1.25F);
  check(1e30F);
  const Philox random({.purpose = Purpose::kTest, .tensor = 5});
  for (std::uint64_t i = 0; i < 200000; ++i) {
    check(
        std::ldexp(random.uniform(2 * i), static_cast<int>(random.word(2 * i + 1) % 48) - 28));
  }
}

TYPED_TEST(CudaFloat, SameValues) {
  using F = TypeParam;
  for (int code = 0; code < 1 << F::kBits; ++code) {
    const float ours = F::decode(static_cast<std::uint8_t>(code));
    const float cuda = their_value(F(), code);
    if (std::isnan(ours)) {
      EXPECT_TRUE(std::isnan(cuda)) << code;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(ours), std::bit_cast<std::uint32_t>(cuda)) << code;
    }
  }
}

}  // namespace
}  // namespace zeropp::quant
