#include <cmath>

#include "quant/reference.h"

namespace zeropp::quant::reference {

void convert(ConstView src, MutView dst) {
  for (std::size_t i = 0; i < src.n; ++i) store(dst, i, load(src, i));
}

void accumulate(MutView acc, ConstView x) {
  for (std::size_t i = 0; i < acc.n; ++i) {
    store(acc, i, canonical(load(acc, i) + load(x, i)));
  }
}

void divide(ConstView src, float divisor, MutView dst) {
  for (std::size_t i = 0; i < src.n; ++i) {
    store(dst, i, canonical(load(src, i) / divisor));
  }
}

bool all_finite(ConstView x) {
  for (std::size_t i = 0; i < x.n; ++i) {
    if (!std::isfinite(load(x, i))) return false;
  }
  return true;
}

}  // namespace zeropp::quant::reference
