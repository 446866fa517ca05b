#include "hierarchy/transport/virtual_watchdog.h"

#include <algorithm>
#include <chrono>

namespace zeropp::hierarchy::virtual_ranks {

Watchdog::Watchdog(World& world) : world_(world), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::watch() {
  using Clock = std::chrono::steady_clock;
  const auto timeout = world_.options().timeout;
  const auto tick =
      std::clamp(timeout / 8, std::chrono::milliseconds(1), std::chrono::milliseconds(1000));
  std::uint64_t last = 0;
  auto moved = Clock::now();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, tick, [this] { return over_; })) {
    std::uint64_t progress = 0;
    int waiting = 0;
    bool computing = false;
    for (const Activity& a : world_.activities()) {
      progress += a.progress.load(std::memory_order_relaxed);
      waiting += a.waiting.load(std::memory_order_relaxed);
      computing |= a.computing.load(std::memory_order_relaxed);
    }
    const auto now = Clock::now();
    if (progress != last || waiting == 0) {
      last = progress;
      moved = now;
    } else if (now - moved >= (computing ? 2 * timeout : timeout)) {
      world_.fail_timeout();
      return;
    }
  }
}

}  // namespace zeropp::hierarchy::virtual_ranks
