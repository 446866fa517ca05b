#include "hierarchy/transport/virtual.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "hierarchy/transport/virtual_endpoint.h"
#include "hierarchy/transport/virtual_fibers.h"
#include "hierarchy/transport/virtual_threads.h"
#include "hierarchy/transport/virtual_watchdog.h"
#include "hierarchy/transport/virtual_world.h"
#include "quant/error.h"

namespace zeropp::hierarchy {
namespace virtual_ranks {
namespace {

/// "[area] expected X, found Y" with the rank behind Y.
UsageError with_rank(const std::string& text, const std::string& rank) {
  constexpr std::string_view expected = "] expected ";
  constexpr std::string_view found = ", found ";
  const auto e = text.find(expected);
  const auto f = e == std::string::npos ? e : text.find(found, e);
  if (f == std::string::npos) return UsageError("virtual", "valid use", text + rank);
  const auto x = e + expected.size();
  return UsageError(text.substr(1, e - 1), text.substr(x, f - x),
                    text.substr(f + found.size()) + rank);
}

std::string timeout_text(const World& world, World::Failure& failure,
                         const std::vector<const Endpoint*>& endpoints) {
  constexpr std::size_t max_told = 16;
  std::sort(failure.waits.begin(), failure.waits.end());
  std::string text =
      fmt::format("[virtual] timeout: no progress for {} ms", world.options().timeout.count());
  std::vector<bool> waited(endpoints.size());
  for (std::size_t i = 0; i < failure.waits.size(); ++i) {
    const auto& [rank, what] = failure.waits[i];
    waited[static_cast<std::size_t>(rank)] = true;
    if (i < max_told) text += fmt::format("; rank {} {}", rank, what);
  }
  if (failure.waits.size() > max_told) {
    text += fmt::format("; {} more ranks wait", failure.waits.size() - max_told);
  }
  std::size_t others = 0;
  for (const Endpoint* e : endpoints) {
    if (waited[static_cast<std::size_t>(e->rank())] || ++others > max_told) continue;
    text += fmt::format("; rank {} was last {} and does not wait", e->rank(), e->where());
  }
  if (others > max_told) text += fmt::format("; {} more ranks do not wait", others - max_told);
  return text;
}

/// Throws what run_virtual throws, if the world failed.
void rethrow(World& world, const std::vector<const Endpoint*>& endpoints) {
  if (!world.failed()) return;
  World::Failure& failure = world.failure();
  if (failure.rank < 0) throw TransportError(timeout_text(world, failure, endpoints));
  if (!failure.error) {
    failure.error = RankError{
        .text = "an exception was caught after it had passed through an exchange in flight"};
  }
  if (failure.error->usage) {
    throw with_rank(failure.error->text,
                    fmt::format(" (virtual rank {}, {})", failure.rank, failure.where));
  }
  if (failure.error->text.starts_with("[virtual] rank"))
    throw TransportError(failure.error->text);
  throw TransportError(fmt::format("[virtual] rank {} failed {}: {}", failure.rank,
                                   failure.where, failure.error->text));
}

/// Runs jobs 1.. on threads and job 0 here. If a thread cannot be made, the others end.
template <class Job>
void run_all(World& world, std::vector<std::unique_ptr<Job>>& jobs, auto&& run) {
  std::vector<std::thread> threads;
  threads.reserve(jobs.size());
  try {
    for (std::size_t i = 1; i < jobs.size(); ++i) {
      threads.emplace_back([&run, &job = *jobs[i]] { run(job); });
    }
  } catch (const std::system_error& e) {
    world.fail(static_cast<int>(threads.size()) + 1, "before its first exchange",
               RankError{.text = fmt::format("no thread for it: {}", e.what())});
  }
  run(*jobs[0]);
  for (std::thread& t : threads) t.join();
}

void run_fibers(World& world, const std::function<void(Transport&)>& body) {
  const int ranks = world.topology().ranks();
  const int workers = static_cast<int>(world.activities().size());
  std::vector<std::unique_ptr<FiberWorker>> jobs;
  std::vector<const Endpoint*> endpoints;
  for (int w = 0; w < workers; ++w) {
    const int first = static_cast<int>(std::int64_t{ranks} * w / workers);
    const int end = static_cast<int>(std::int64_t{ranks} * (w + 1) / workers);
    jobs.push_back(std::make_unique<FiberWorker>(world, w, first, end - first, body));
    for (int i = 0; i < end - first; ++i) endpoints.push_back(&jobs.back()->endpoint(i));
  }
  {
    const Watchdog watchdog(world);
    run_all(world, jobs, [](FiberWorker& w) { w.run(); });
  }
  rethrow(world, endpoints);
}

void run_threads(World& world, const std::function<void(Transport&)>& body) {
  std::vector<std::unique_ptr<ThreadRank>> jobs;
  std::vector<const Endpoint*> endpoints;
  for (int r = 0; r < world.topology().ranks(); ++r) {
    jobs.push_back(std::make_unique<ThreadRank>(world, r));
    endpoints.push_back(&jobs.back()->endpoint());
  }
  {
    const Watchdog watchdog(world);
    run_all(world, jobs, [&body](ThreadRank& r) { r.run(body); });
  }
  rethrow(world, endpoints);
}

}  // namespace
}  // namespace virtual_ranks

int virtual_workers(const Topology& topology, const VirtualOptions& options) {
  if (options.workers < 0) {
    throw UsageError("virtual", "workers >= 0", std::to_string(options.workers));
  }
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int wanted = options.workers == 0 ? cores : options.workers;
  return std::min(wanted, topology.ranks());
}

void run_virtual(const Topology& topology, const VirtualOptions& options,
                 const std::function<void(Transport&)>& body) {
  constexpr std::size_t min_stack = std::size_t{64} << 10;
  if (options.stack_bytes < min_stack) {
    throw UsageError("virtual", fmt::format("stack_bytes >= {}", min_stack),
                     std::to_string(options.stack_bytes));
  }
  if (options.timeout.count() <= 0) {
    throw UsageError("virtual", "timeout > 0 ms", std::to_string(options.timeout.count()));
  }
  const int workers =
      options.thread_per_rank ? topology.ranks() : virtual_workers(topology, options);
  virtual_ranks::World world(topology, options, workers);
  if (options.thread_per_rank) {
    virtual_ranks::run_threads(world, body);
  } else {
    virtual_ranks::run_fibers(world, body);
  }
}

}  // namespace zeropp::hierarchy
