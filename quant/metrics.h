#pragma once

#include <cstdint>

#include "quant/dtype.h"

namespace zeropp::quant {

/// Error of an approximation y of x, in double.
struct ErrorMetrics {
  double nmse = 0;        ///< ||y-x||^2 / ||x||^2 (0 when both are zero).
  double sqnr_db = 0;     ///< -10 log10(nmse).
  double cosine = 1;      ///< <x,y> / (||x|| ||y||).
  double bias = 0;        ///< mean(y-x) / rms(x).
  double max_abs = 0;     ///< max |y-x|.
  double norm_ratio = 1;  ///< ||y|| / ||x||.
  std::uint64_t n = 0;
};

/// Running sums, so that spans can be added one after the other.
struct ErrorSums {
  double xx = 0, yy = 0, xy = 0, dd = 0, d = 0, max_abs = 0;
  std::uint64_t n = 0;
  void add(ConstView x, ConstView y);
  void add(const ErrorSums& o);
  ErrorMetrics metrics() const;
};

}  // namespace zeropp::quant
