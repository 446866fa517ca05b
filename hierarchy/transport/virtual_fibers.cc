#include "hierarchy/transport/virtual_fibers.h"

#include <sched.h>

#include <chrono>
#include <thread>

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

  void wait(const Counter& word, std::uint64_t target, bool until_failure) override {
    worker.suspend(*this, {&word, target, until_failure});
  }
  void pause() override { worker.suspend(*this, {&always, 1, false}); }
  void arrive() override {
    if (++worker.at_barrier_ < worker.ranks()) return;
    worker.at_barrier_ = 0;
    worker.world_.arrive_at_barrier();
  }

  FiberWorker& worker;
  std::size_t index;
  Endpoint endpoint;
  Stack stack;
  SanitizedStack sanitized;
  boost::context::fiber context;
  bool started = false;
};

FiberWorker::FiberWorker(World& world, int worker, int first_rank, int ranks,
                         const std::function<void(Transport&)>& body)
    : world_(world),
      activity_(world.activity(worker)),
      body_(body),
      conditions_(static_cast<std::size_t>(ranks), Condition{&always, 1, true}),
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
  scheduler_stack_.set_thread();
  int passes = 0;
  while (live_ > 0) {
    const bool failed = world_.failed();
    bool any = false;
    for (std::size_t i = 0; i < conditions_.size(); ++i) {
      const Condition& c = conditions_[i];
      if (c.word->load(std::memory_order_acquire) < c.target && !(failed && c.until_failure)) {
        continue;
      }
      resume(i);
      any = true;
    }
    passes = any ? 0 : passes + 1;
    if (!any) idle(passes);
  }
}

void FiberWorker::idle(int passes) {
  constexpr int spins = 200;
  constexpr int yields = 400;
  if (passes < spins) {
    __builtin_ia32_pause();
  } else if (passes < spins + yields) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool FiberWorker::start(Fiber& f) {
  f.started = true;
  try {
    f.stack = Stack(world_.options().stack_bytes);
  } catch (const std::exception& e) {
    world_.fail(f.endpoint.rank(), "at its start", RankError{.text = e.what()});
    end(f);
    return false;
  }
  f.sanitized.set_bounds(f.stack.bottom(), f.stack.bytes());
  // Tops at different distances from the page boundary: else all stacks share few cache sets.
  const std::size_t colour = f.index % 32 * 192;
  boost::context::stack_context context;
  context.size = f.stack.bytes() - colour;
  context.sp = f.stack.bottom() + context.size;
  f.context = boost::context::fiber(
      std::allocator_arg, boost::context::preallocated(context.sp, context.size, context),
      BorrowedStack{context}, [this, &f](boost::context::fiber&& from) {
        f.sanitized.entered(scheduler_stack_);
        scheduler_ = std::move(from);
        f.endpoint.run(body_);
        end(f);
        f.sanitized.leave_for(scheduler_stack_, true);
        return std::move(scheduler_);
      });
  return true;
}

void FiberWorker::end(Fiber& f) {
  conditions_[f.index] = {&never, 1, false};
  --live_;
}

void FiberWorker::resume(std::size_t i) {
  Fiber& f = *fibers_[i];
  if (!f.started) {
    if (!start(f)) return;
  } else {
    activity_.waiting.fetch_sub(1, std::memory_order_relaxed);
  }
  activity_.computing.store(true, std::memory_order_relaxed);
  activity_.progress.fetch_add(1, std::memory_order_relaxed);
  const ExceptionGlobals mine = ExceptionGlobals::of_thread();
  ExceptionGlobals::of_thread() = {};
  scheduler_stack_.leave_for(f.sanitized);
  f.context = std::move(f.context).resume();
  scheduler_stack_.entered(f.sanitized);
  ExceptionGlobals::of_thread() = mine;
  activity_.computing.store(false, std::memory_order_relaxed);
  if (!f.context) f.sanitized.destroy();
}

void FiberWorker::suspend(Fiber& f, const Condition& condition) {
  conditions_[f.index] = condition;
  activity_.waiting.fetch_add(1, std::memory_order_relaxed);
  const ExceptionGlobals mine = ExceptionGlobals::of_thread();
  f.sanitized.leave_for(scheduler_stack_);
  scheduler_ = std::move(scheduler_).resume();
  f.sanitized.entered(scheduler_stack_);
  ExceptionGlobals::of_thread() = mine;
}

}  // namespace zeropp::hierarchy::virtual_ranks
