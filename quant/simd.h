#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zeropp::quant {

/// Kernels this build holds and this CPU can run: "scalar" (the reference that defines every
/// byte) first, then instruction sets as Highway names them.
std::vector<std::string> simd_targets();

/// Makes all kernels of the process use one of simd_targets(); "" is the best there is.
/// For tests and comparisons: not while other threads are inside a kernel.
void force_simd_target(std::string_view target);

/// True when the scalar reference was asked for.
bool scalar_forced();

}  // namespace zeropp::quant
