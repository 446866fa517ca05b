#include "quant/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "quant/convert.h"
#include "quant/error.h"

namespace zeropp::quant {
namespace {

constexpr std::size_t kChunk = 1024;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// a / b, where nothing over nothing is `zero_over_zero`.
double ratio(double a, double b, double zero_over_zero) {
  if (b != 0) return a / b;
  return a == 0 ? zero_over_zero : std::copysign(kInfinity, a);
}

/// The larger one; a NaN wins and stays, which std::max does not promise.
double larger(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(a, b);
}

}  // namespace

void ErrorSums::add(ConstView x, ConstView y) {
  if (x.n != y.n) {
    throw UsageError("error metrics", std::to_string(x.n) + " elements", std::to_string(y.n));
  }
  std::array<float, kChunk> xs, ys;
  for (std::size_t first = 0; first < x.n; first += kChunk) {
    const std::size_t m = std::min(kChunk, x.n - first);
    convert(x.slice(first, m), mut_view(std::span(xs).first(m)));
    convert(y.slice(first, m), mut_view(std::span(ys).first(m)));
    for (std::size_t i = 0; i < m; ++i) {
      const double a = xs[i], b = ys[i], e = b - a;
      xx += a * a;
      yy += b * b;
      xy += a * b;
      dd += e * e;
      d += e;
      max_abs = larger(max_abs, std::fabs(e));
    }
  }
  n += x.n;
}

void ErrorSums::add(const ErrorSums& o) {
  xx += o.xx;
  yy += o.yy;
  xy += o.xy;
  dd += o.dd;
  d += o.d;
  max_abs = larger(max_abs, o.max_abs);
  n += o.n;
}

ErrorMetrics ErrorSums::metrics() const {
  ErrorMetrics m;
  m.n = n;
  if (n == 0) {
    m.sqnr_db = kInfinity;
    return m;
  }
  const double count = static_cast<double>(n);
  m.nmse = ratio(dd, xx, 0);
  m.sqnr_db = -10 * std::log10(m.nmse);
  m.cosine = xx == 0 && yy == 0 ? 1 : ratio(xy, std::sqrt(xx) * std::sqrt(yy), 0);
  m.bias = ratio(d / count, std::sqrt(xx / count), 0);
  m.max_abs = max_abs;
  m.norm_ratio = ratio(std::sqrt(yy), std::sqrt(xx), 1);
  return m;
}

}  // namespace zeropp::quant
