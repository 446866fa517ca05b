#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/zero/gpt_harness.h"
#include "zero/ops/ops.h"

namespace zeropp::zero::testing {

using quant::Dtype;
using Doubles = std::vector<double>;

inline std::string dtype_name(const ::testing::TestParamInfo<Dtype>& info) {
  return std::string(quant::name(info.param));
}

inline Doubles to_double(const std::vector<float>& x) { return {x.begin(), x.end()}; }

inline quant::Tensor tensor(const std::vector<float>& x, Dtype dtype = Dtype::kF32) {
  quant::Tensor t(nullptr, quant::MemoryKind::kActivation, dtype, x.size());
  convert(quant::view(x), t.view());
  return t;
}
/// Not yet written: NaN in every dtype.
inline quant::Tensor blank(std::size_t n, Dtype dtype = Dtype::kF32) {
  quant::Tensor t(nullptr, quant::MemoryKind::kActivation, dtype, n);
  for (std::byte& b : t.view().as_bytes()) b = std::byte{0xFF};
  return t;
}
inline std::vector<float> values(const quant::Tensor& t) { return to_f32(t.view()); }
/// x as `dtype` would keep it.
inline std::vector<float> rounded(const std::vector<float>& x, Dtype dtype) {
  return values(tensor(x, dtype));
}
/// Largest relative error of one rounding.
inline double unit_roundoff(Dtype dtype) {
  return dtype == Dtype::kF32 ? 0x1p-24 : dtype == Dtype::kBF16 ? 0x1p-8 : 0x1p-11;
}

/// Central differences of sum_i weight[i] * f(x)[i], in double.
inline Doubles numeric_gradient(const std::function<Doubles(const Doubles&)>& f, Doubles x,
                                const Doubles& weight) {
  const double h = 1e-5;
  const auto at = [&](std::size_t i, double v) {
    const double kept = x[i];
    x[i] = v;
    const Doubles y = f(x);
    x[i] = kept;
    double sum = 0;
    for (std::size_t j = 0; j < y.size(); ++j) sum += weight[j] * y[j];
    return sum;
  };
  Doubles gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    gradient[i] = (at(i, x[i] + h) - at(i, x[i] - h)) / (2 * h);
  }
  return gradient;
}

/// Largest |got - want| over the largest |want|.
inline double worst(const std::vector<float>& got, const Doubles& want) {
  double error = 0, scale = 1e-30;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double d = std::abs(static_cast<double>(got.at(i)) - want[i]);
    error = std::isnan(d) ? d : std::max(error, d);
    if (std::isnan(error)) return error;
    scale = std::max(scale, std::abs(want[i]));
  }
  return got.size() == want.size() ? error / scale : std::nan("");
}

}  // namespace zeropp::zero::testing
