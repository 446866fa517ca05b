#include "hierarchy/transport/virtual_clock.h"

#include <chrono>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace zeropp::hierarchy::virtual_ranks {
namespace {

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

#if defined(__x86_64__)
bool counter_is_even() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned invariant_tsc = 1U << 8;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & invariant_tsc) != 0;
}
std::int64_t counter() { return static_cast<std::int64_t>(__rdtsc()); }
#else
bool counter_is_even() { return false; }
std::int64_t counter() { return 0; }
#endif

}  // namespace

Clock::Clock() : counter_(counter_is_even()) {
  if (!counter_) return;
  constexpr std::int64_t calibration_ns = 1'000'000;
  const std::int64_t ns0 = steady_ns();
  const std::int64_t ticks0 = counter();
  std::int64_t ns1 = ns0;
  while (ns1 - ns0 < calibration_ns) ns1 = steady_ns();
  seconds_per_tick_ =
      static_cast<double>(ns1 - ns0) * 1e-9 / static_cast<double>(counter() - ticks0);
}

const Clock& Clock::instance() {
  static const Clock clock;
  return clock;
}

Clock::Ticks Clock::now() const { return counter_ ? counter() : steady_ns(); }

}  // namespace zeropp::hierarchy::virtual_ranks
