#pragma once

#include <boost/context/fiber.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "hierarchy/transport/virtual_endpoint.h"
#include "hierarchy/transport/virtual_stack.h"
#include "hierarchy/transport/virtual_switch.h"
#include "hierarchy/transport/virtual_world.h"

namespace zeropp::hierarchy::virtual_ranks {

/// One worker thread's slice of consecutive ranks, as fibers. A waiting fiber leaves a
/// condition (a counter and a value), which the worker polls; only fibers that can go on are
/// resumed.
class FiberWorker {
 public:
  FiberWorker(World& world, int worker, int first_rank, int ranks,
              const std::function<void(Transport&)>& body);
  ~FiberWorker();

  /// Runs the slice to its end on the calling thread.
  void run();
  const Endpoint& endpoint(int i) const;
  int ranks() const { return static_cast<int>(fibers_.size()); }

 private:
  struct Fiber;
  struct Condition {
    const Counter* word;
    std::uint64_t target;
    bool until_failure;
  };

  bool start(Fiber& fiber);  ///< False if it ended at once, for want of a stack.
  void end(Fiber& fiber);
  void resume(std::size_t i);
  void suspend(Fiber& fiber, const Condition& condition);
  void idle(int passes);

  World& world_;
  Activity& activity_;
  const std::function<void(Transport&)>& body_;
  std::vector<Condition> conditions_;  ///< Of the fibers; contiguous, for they are polled.
  std::vector<std::unique_ptr<Fiber>> fibers_;
  boost::context::fiber scheduler_;
  SanitizedStack scheduler_stack_;
  int live_;
  int at_barrier_ = 0;
};

}  // namespace zeropp::hierarchy::virtual_ranks
