#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "hierarchy/transport/virtual_world.h"

namespace zeropp::hierarchy::virtual_ranks {

/// Fails the world when ranks wait and nothing has moved for `timeout`, or for twice that while
/// some rank computes without ever calling the transport. Such a rank cannot be stopped from
/// outside: it gets the error at its next call, and the run ends when it does. Ranks that share
/// its worker cannot end before it either.
class Watchdog {
 public:
  explicit Watchdog(World& world);
  ~Watchdog();

 private:
  void watch();

  World& world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace zeropp::hierarchy::virtual_ranks
