#include "hierarchy/transport/virtual_threads.h"

#include <chrono>
#include <thread>

#include "hierarchy/transport/virtual_idle.h"

namespace zeropp::hierarchy::virtual_ranks {

void ThreadRank::run(const std::function<void(Transport&)>& body) {
  activity_.computing.store(true, std::memory_order_relaxed);
  endpoint_.run(body);
  activity_.computing.store(false, std::memory_order_relaxed);
}

double ThreadRank::wait(const Counter& word, std::uint64_t target, bool until_failure) {
  const auto start = std::chrono::steady_clock::now();
  activity_.waiting.store(1, std::memory_order_relaxed);
  activity_.computing.store(false, std::memory_order_relaxed);
  Idle idle;
  while (word.load(std::memory_order_acquire) < target && !(until_failure && world_.failed())) {
    idle.pass();
  }
  activity_.progress.fetch_add(1, std::memory_order_relaxed);
  activity_.computing.store(true, std::memory_order_relaxed);
  activity_.waiting.store(0, std::memory_order_relaxed);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ThreadRank::pause() { std::this_thread::yield(); }

}  // namespace zeropp::hierarchy::virtual_ranks
