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

std::uint64_t divide_add(ConstView x, float divisor, ConstView before, MutView to) {
  std::uint64_t underflow = 0;
  for (std::size_t i = 0; i < to.n; ++i) {
    float sum = canonical(load(x, i) / divisor);
    if (before.data != nullptr) sum = canonical(sum + load(before, i));
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(sum) & 0x7FFFFFFF;
    underflow += magnitude != 0 && magnitude <= underflow_limit(to.dtype) ? 1 : 0;
    store(to, i, sum);
  }
  return underflow;
}

bool all_finite(ConstView x) {
  for (std::size_t i = 0; i < x.n; ++i) {
    if (!std::isfinite(load(x, i))) return false;
  }
  return true;
}

}  // namespace zeropp::quant::reference
