#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "hierarchy/transport/virtual_clock.h"
#include "hierarchy/transport/virtual_endpoint.h"
#include "hierarchy/transport/virtual_switch.h"
#include "hierarchy/transport/virtual_world.h"

namespace zeropp::hierarchy::virtual_ranks {

/// One worker thread's slice of consecutive ranks, as fibers.
///
/// A waiting fiber leaves a condition (a counter and a value) and looks for the next fiber that
/// can go on, in rank order; it jumps there directly, so a turn costs one switch. When no fiber
/// can go on, the one that stopped last polls for all: first spinning, then yielding, then
/// asleep.
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
  struct Turn {
    std::size_t next;      ///< A fiber, or home().
    Clock::Ticks stopped;  ///< When the fiber before it stopped,
    Clock::Ticks found;    ///< and when this one goes on; between them nothing ran.
  };

  /// The thread's own stack comes after those of the fibers.
  std::size_t home() const { return fibers_.size(); }
  Turn next_turn(std::size_t after);
  bool can_go_on(std::size_t i, bool failed);
  bool start(Fiber& fiber);  ///< False if it ended at once.
  void end(Fiber& fiber);
  // After a switch the processor mispredicts every return on the way up, which is most of what
  // a turn costs: the path from a wait to the switch is inlined into one function.
  /// Runs `next`; returns when the calling fiber is resumed.
  [[gnu::always_inline]] void switch_to(std::size_t next);
  [[gnu::always_inline]] void leave(std::size_t next, bool last);
  [[gnu::always_inline]] void arrive(boost::context::fiber from);
  [[gnu::always_inline]] double suspend(std::size_t i, const Condition& condition);

  World& world_;
  Activity& activity_;
  const std::function<void(Transport&)>& body_;
  const Clock& clock_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  // What a turn touches, by fiber, apart from the rest: with many ranks the cache is the limit.
  std::vector<Condition> conditions_;
  std::vector<boost::context::fiber> contexts_;
  std::vector<SanitizedStack> stacks_;
  std::size_t current_;   ///< Who runs.
  std::size_t previous_;  ///< Who ran before.
  Clock::Ticks resumed_ = 0;
  std::uint64_t turns_ = 0;
  int waiting_ = 0;
  int live_;
  int at_barrier_ = 0;
};

}  // namespace zeropp::hierarchy::virtual_ranks
