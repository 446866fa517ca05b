#include "hierarchy/transport/virtual_fibers.h"

#include "hierarchy/transport/virtual_idle.h"
#include "hierarchy/transport/virtual_stack.h"

namespace zeropp::hierarchy::virtual_ranks {
namespace {

Counter always{1};
Counter never{0};

/// Stacks belong to the worker, not to boost's fiber object.
struct BorrowedStack {
  boost::context::stack_context context;
  boost::context::stack_context allocate() { return context; }
  void deallocate(boost::context::stack_context&) {}
};

}  // namespace

struct FiberWorker::Fiber final : Waiter {
  Fiber(FiberWorker& w, std::size_t i, int rank)
      : worker(w), index(i), endpoint(w.world_, rank, *this) {}

  double wait(const Counter& word, std::uint64_t target, bool until_failure) override;
  void pause() override { wait(always, 1, false); }
  void arrive() override {
    if (++worker.at_barrier_ < worker.ranks()) return;
    worker.at_barrier_ = 0;
    worker.world_.arrive_at_barrier();
  }

  FiberWorker& worker;
  std::size_t index;
  Endpoint endpoint;
  Stack stack;
  bool started = false;
};

FiberWorker::FiberWorker(World& world, int worker, int first_rank, int ranks,
                         const std::function<void(Transport&)>& body)
    : world_(world),
      activity_(world.activity(worker)),
      body_(body),
      clock_(Clock::instance()),
      conditions_(static_cast<std::size_t>(ranks), Condition{&always, 1, true}),
      contexts_(static_cast<std::size_t>(ranks) + 1),
      stacks_(static_cast<std::size_t>(ranks) + 1),
      current_(static_cast<std::size_t>(ranks)),
      previous_(current_),
      live_(ranks) {
  for (int i = 0; i < ranks; ++i) {
    fibers_.push_back(
        std::make_unique<Fiber>(*this, static_cast<std::size_t>(i), first_rank + i));
  }
}

FiberWorker::~FiberWorker() = default;

const Endpoint& FiberWorker::endpoint(int i) const {
  return fibers_[static_cast<std::size_t>(i)]->endpoint;
}

void FiberWorker::run() {
  stacks_[home()].set_thread();
  activity_.computing.store(true, std::memory_order_relaxed);
  const Turn turn = next_turn(home());
  resumed_ = turn.found;
  if (turn.next != home()) switch_to(turn.next);
  for (std::size_t i = 0; i < home(); ++i) {
    if (fibers_[i]->started) stacks_[i].destroy();
  }
  activity_.computing.store(false, std::memory_order_relaxed);
}

bool FiberWorker::can_go_on(std::size_t i, bool failed) {
  const Condition& c = conditions_[i];
  if (c.word->load(std::memory_order_acquire) < c.target && !(failed && c.until_failure)) {
    return false;
  }
  return i == current_ || contexts_[i] || start(*fibers_[i]);
}

FiberWorker::Turn FiberWorker::next_turn(std::size_t after) {
  Clock::Ticks idle_since = 0;
  Idle idle;
  while (live_ > 0) {
    const bool failed = world_.failed();
    std::size_t i = after;
    for (std::size_t k = 0; k < home(); ++k) {
      i = i + 1 < home() ? i + 1 : 0;
      if (!can_go_on(i, failed)) continue;
      const Clock::Ticks now = clock_.now();
      if (idle_since == 0) return {.next = i, .stopped = now, .found = now};
      activity_.computing.store(true, std::memory_order_relaxed);
      return {.next = i, .stopped = idle_since, .found = now};
    }
    if (idle_since == 0) {
      idle_since = clock_.now();
      activity_.computing.store(false, std::memory_order_relaxed);
    }
    idle.pass();
  }
  return {.next = home(), .stopped = 0, .found = 0};
}

bool FiberWorker::start(Fiber& f) {
  if (f.started) return false;
  if (world_.failed()) {
    end(f);
    return false;
  }
  try {
    f.stack = Stack(world_.options().stack_bytes);
  } catch (const std::exception& e) {
    world_.fail(f.endpoint.rank(), "at its start", RankError{.usage = false, .text = e.what()});
    end(f);
    return false;
  }
  f.started = true;
  stacks_[f.index].set_bounds(f.stack.bottom(), f.stack.bytes());
  // Tops at different distances from the page boundary: else all stacks share few cache sets.
  const std::size_t colour = f.index % 32 * 192;
  boost::context::stack_context context;
  context.size = f.stack.bytes() - colour;
  context.sp = f.stack.bottom() + context.size;
  contexts_[f.index] = boost::context::fiber(
      std::allocator_arg, boost::context::preallocated(context.sp, context.size, context),
      BorrowedStack{context}, [this, &f](boost::context::fiber&& from) {
        arrive(std::move(from));
        activity_.progress.store(++turns_, std::memory_order_relaxed);
        f.endpoint.run(body_);
        end(f);
        const Turn turn = next_turn(f.index);
        resumed_ = turn.found;
        leave(turn.next, true);
        return std::move(contexts_[turn.next]);
      });
  return true;
}

void FiberWorker::end(Fiber& f) {
  conditions_[f.index] = {&never, 1, false};
  --live_;
}

inline void FiberWorker::leave(std::size_t next, bool last) {
  previous_ = current_;
  current_ = next;
  stacks_[previous_].leave_for(stacks_[next], last);
}

inline void FiberWorker::arrive(boost::context::fiber from) {
  stacks_[current_].entered(stacks_[previous_]);
  if (from) contexts_[previous_] = std::move(from);  // Empty: it has ended.
}

inline void FiberWorker::switch_to(std::size_t next) {
  const ExceptionGlobals mine = ExceptionGlobals::of_thread();
  ExceptionGlobals::of_thread() = {};  // For a fiber that starts; others restore their own.
  leave(next, false);
  arrive(std::move(contexts_[next]).resume());
  ExceptionGlobals::of_thread() = mine;
}

inline double FiberWorker::suspend(std::size_t i, const Condition& condition) {
  conditions_[i] = condition;
  activity_.waiting.store(++waiting_, std::memory_order_relaxed);
  const Turn turn = next_turn(i);
  resumed_ = turn.found;
  if (turn.next != i) switch_to(turn.next);
  activity_.waiting.store(--waiting_, std::memory_order_relaxed);
  activity_.progress.store(++turns_, std::memory_order_relaxed);
  return clock_.seconds(resumed_ - turn.stopped);
}

double FiberWorker::Fiber::wait(const Counter& word, std::uint64_t target, bool until_failure) {
  return worker.suspend(index, {&word, target, until_failure});
}

}  // namespace zeropp::hierarchy::virtual_ranks
