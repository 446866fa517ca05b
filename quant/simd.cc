#include "quant/simd.h"

#include "quant/error.h"

namespace zeropp::quant {

std::vector<std::string> simd_targets() { return {"scalar"}; }

void force_simd_target(std::string_view target) {
  if (target.empty() || target == "scalar") return;
  throw UsageError("simd target", "scalar", "'" + std::string(target) + "'");
}

bool scalar_forced() { return true; }

}  // namespace zeropp::quant
