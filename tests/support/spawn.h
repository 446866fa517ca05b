#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "hierarchy/topology.h"
#include "hierarchy/transport/virtual.h"

namespace zeropp::test {

/// The options as given, or a thread per rank whatever they say where ZEROPP_TEST_THREADS is
/// set: ThreadSanitizer follows threads, not our fibers (.ci/sanitize.sh tsan).
inline hierarchy::VirtualOptions launch_options(hierarchy::VirtualOptions options = {}) {
  if (std::getenv("ZEROPP_TEST_THREADS") != nullptr) options.thread_per_rank = true;
  return options;
}

/// Runs `body` on every virtual rank and returns what each of them returned, by rank.
template <class Result>
std::vector<Result> spawn(const hierarchy::Topology& topology,
                          const hierarchy::VirtualOptions& options,
                          const std::function<Result(hierarchy::Transport&)>& body) {
  std::vector<Result> results(static_cast<std::size_t>(topology.ranks()));
  hierarchy::run_virtual(
      topology, launch_options(options), [&](hierarchy::Transport& transport) {
        results[static_cast<std::size_t>(transport.rank())] = body(transport);
      });
  return results;
}

/// The same without results.
inline void spawn(const hierarchy::Topology& topology, const hierarchy::VirtualOptions& options,
                  const std::function<void(hierarchy::Transport&)>& body) {
  hierarchy::run_virtual(topology, launch_options(options), body);
}

/// N ranks on one node, for tests that do not look at levels.
inline hierarchy::Topology flat(int ranks) {
  return hierarchy::Topology({{.name = "node", .fan_out = ranks}});
}

/// The ways to run the same ranks, which must not differ in any result.
struct Launch {
  std::string name;
  hierarchy::VirtualOptions options;
  friend std::ostream& operator<<(std::ostream& out, const Launch& l) { return out << l.name; }
};

/// One, two and three workers; a thread per rank.
inline std::vector<Launch> launches() {
  std::vector<Launch> all;
  for (int workers : {1, 2, 3}) {
    all.push_back({.name = std::to_string(workers) + "_workers", .options = {}});
    all.back().options.workers = workers;
  }
  all.push_back({.name = "threads", .options = {}});
  all.back().options.thread_per_rank = true;
  return all;
}

/// The text of the Error that `f` throws. Anything else, or nothing, is a logic_error.
template <class Error, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  throw std::logic_error("no exception was thrown");
}

}  // namespace zeropp::test
