#include "quant/simd.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <atomic>

#include "quant/error.h"

namespace zeropp::quant {
namespace {

std::atomic<bool> use_scalar{false};

void choose(std::int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

constexpr bool is_plain(std::int64_t target) {
  return (target & (HWY_SCALAR | HWY_EMU128)) != 0;
}

}  // namespace

std::vector<std::string> simd_targets() {
  std::vector<std::string> names{"scalar"};
  hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (!is_plain(target)) names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

void force_simd_target(std::string_view wanted) {
  choose(0);
  use_scalar = wanted == "scalar";
  if (wanted.empty() || wanted == "scalar") return;
  std::string known = "scalar";
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (is_plain(target)) continue;
    if (wanted == hwy::TargetName(target)) return choose(target);
    known += std::string(", ") + hwy::TargetName(target);
  }
  throw UsageError("simd target", "one of " + known, "'" + std::string(wanted) + "'");
}

bool scalar_forced() { return use_scalar.load(std::memory_order_relaxed); }

}  // namespace zeropp::quant
