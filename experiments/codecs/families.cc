#include "experiments/codecs/families.h"

#include <cmath>

#include "quant/convert.h"
#include "quant/error.h"
#include "quant/rng.h"

namespace zeropp::experiments {
namespace {

using quant::Dtype;
using quant::Philox;

/// Student's t with 3 degrees of freedom, scaled to variance 1: the variance exists, the fourth
/// moment does not.
float student_t3(const Philox& random, std::size_t i) {
  double squares = 0;
  for (std::size_t j = 1; j < 4; ++j) {
    const double z = random.normal(4 * i + j);
    squares += z * z;
  }
  return static_cast<float>(random.normal(4 * i) / std::sqrt(squares));
}

/// Below the smallest normal number of the dtype.
float denormal(const Philox& random, std::size_t i, Dtype dtype) {
  const float least = dtype == Dtype::kF16 ? 0x1p-14F : 0x1p-126F;
  return (2 * random.uniform(i) - 1) * least;
}

}  // namespace

const std::vector<DataFamily>& data_families() {
  static const std::vector<DataFamily> all{
      {"normal", "independent, standard normal"},
      {"heavy-tailed", "Student's t with 3 degrees of freedom, variance 1"},
      {"sparse", "1 in 100 is normal, the others are 0"},
      {"outlier", "normal, but for one 10,000 in the middle"},
      {"constant", "0.1 everywhere"},
      {"denormal", "uniform below the dtype's smallest normal number"}};
  return all;
}

quant::Tensor family_data(std::string_view family, Dtype dtype, std::size_t n,
                          std::uint32_t variation) {
  const Philox random({.purpose = quant::Purpose::kTest, .tensor = 21, .sender = variation});
  quant::Tensor x(nullptr, quant::MemoryKind::kHost, Dtype::kF32, n);
  const auto fill = [&](auto number) {
    for (std::size_t i = 0; i < n; ++i) x.f32()[i] = number(i);
  };
  const auto normal = [&](std::size_t i) { return random.normal(i); };
  if (family == "normal") {
    fill(normal);
  } else if (family == "heavy-tailed") {
    fill([&](std::size_t i) { return student_t3(random, i); });
  } else if (family == "sparse") {
    const Philox chosen({.purpose = quant::Purpose::kTest, .tensor = 22, .sender = variation});
    fill([&](std::size_t i) { return chosen.uniform(i) < 0.01F ? random.normal(i) : 0.0F; });
  } else if (family == "outlier") {
    fill(normal);
    if (n > 0) x.f32()[n / 2] = 1e4F;
  } else if (family == "constant") {
    fill([](std::size_t) { return 0.1F; });
  } else if (family == "denormal") {
    fill([&](std::size_t i) { return denormal(random, i, dtype); });
  } else {
    std::string known;
    for (const DataFamily& f : data_families()) {
      known += (known.empty() ? "" : ", ") + std::string(f.name);
    }
    throw UsageError("--data", known + " or all", "'" + std::string(family) + "'");
  }
  if (dtype == Dtype::kF32) return x;
  quant::Tensor y(nullptr, quant::MemoryKind::kHost, dtype, n);
  quant::convert(x.view(), y.view());
  return y;
}

}  // namespace zeropp::experiments
