#include "hierarchy/transport/virtual_threads.h"

#include <chrono>
#include <thread>

namespace zeropp::hierarchy::virtual_ranks {

void ThreadRank::run(const std::function<void(Transport&)>& body) {
  activity_.computing.store(true, std::memory_order_relaxed);
  endpoint_.run(body);
  activity_.computing.store(false, std::memory_order_relaxed);
}

void ThreadRank::wait(const Counter& word, std::uint64_t target, bool until_failure) {
  activity_.waiting.store(1, std::memory_order_relaxed);
  activity_.computing.store(false, std::memory_order_relaxed);
  constexpr int yields = 100;
  for (int passes = 0; word.load(std::memory_order_acquire) < target; ++passes) {
    if (until_failure && world_.failed()) break;
    if (passes < yields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  activity_.progress.fetch_add(1, std::memory_order_relaxed);
  activity_.computing.store(true, std::memory_order_relaxed);
  activity_.waiting.store(0, std::memory_order_relaxed);
}

void ThreadRank::pause() { std::this_thread::yield(); }

}  // namespace zeropp::hierarchy::virtual_ranks
