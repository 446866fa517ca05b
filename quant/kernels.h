#pragma once

// Elementwise kernels with run-time dispatch behind convert.h, which checks sizes. Pointers may
// have any alignment.

#include <cstdint>

#include "quant/dtype.h"

namespace zeropp::quant::kernels {

void convert(ConstView src, MutView dst);  ///< The dtypes differ.
void accumulate(MutView acc, ConstView x);
void divide(ConstView src, float divisor, MutView dst);
bool all_finite(ConstView x);
std::uint64_t divide_add(ConstView x, float divisor, ConstView before, MutView to);

}  // namespace zeropp::quant::kernels
