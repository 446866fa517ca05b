#include "hierarchy/transport/virtual_idle.h"

#include <chrono>
#include <thread>

namespace zeropp::hierarchy::virtual_ranks {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Idle::pass() {
  // Few: where two workers share a core, a message costs as much as the other one spins.
  constexpr int spins = 30;
  constexpr int yields = 500;
  constexpr auto nap = std::chrono::microseconds(50);
  ++passes_;
  if (passes_ <= spins) {
    relax();
  } else if (passes_ <= spins + yields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(nap);
  }
}

}  // namespace zeropp::hierarchy::virtual_ranks
