#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hierarchy/topology.h"
#include "hierarchy/transport/virtual.h"
#include "hierarchy/transport/virtual_channel.h"
#include "quant/memory.h"

namespace zeropp::hierarchy::virtual_ranks {

/// An exception that left a rank's body, as text: it ends on another thread.
struct RankError {
  bool usage = false;  ///< UsageError; else TransportError.
  std::string text;
};

/// Who waits and who runs, for the watchdog. One per worker.
struct alignas(64) Activity {
  std::atomic<std::uint64_t> progress{0};  ///< Counts ranks that went on.
  std::atomic<int> waiting{0};             ///< Ranks that began and wait.
  std::atomic<bool> computing{false};      ///< A rank is running now.
};

/// What the ranks of one run share.
class World {
 public:
  World(const Topology& topology, const VirtualOptions& options, int workers);

  const Topology& topology() const { return topology_; }
  const VirtualOptions& options() const { return options_; }
  ChannelTable& channels() { return channels_; }
  Activity& activity(int worker) { return activities_[static_cast<std::size_t>(worker)]; }
  std::vector<Activity>& activities() { return activities_; }

  // Failure. The first one counts; afterwards every rank's next call throws.
  bool failed() const { return failed_.load(std::memory_order_seq_cst); }
  /// `where` as Endpoint::where() gives it. Without an error (nullopt) an exception is on its
  /// way up the rank's stack; it is told later by the same rank.
  void fail(int rank, const std::string& where, std::optional<RankError> error);
  void fail_timeout();
  /// Throws what a rank that did not cause the failure gets.
  [[noreturn]] void throw_failed(const std::string& where) const;
  /// Memory that is freed when all ranks have ended.
  void keep(quant::Buffer memory);
  /// On a timeout, what a rank was waiting for.
  void report_wait(int rank, std::string text);

  // Barrier: each worker counts its own ranks, the last worker opens the next generation.
  const Counter& barrier_generation() const { return barrier_generation_; }
  void arrive_at_barrier();

  struct Failure {
    int rank = -1;  ///< -1: timeout.
    std::string where;
    std::optional<RankError> error;
    std::vector<std::pair<int, std::string>> waits;
  };
  Failure& failure() { return failure_; }  ///< When all ranks have ended.

 private:
  const Topology& topology_;
  const VirtualOptions& options_;
  ChannelTable channels_;
  std::vector<Activity> activities_;
  alignas(64) std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  Failure failure_;
  std::vector<quant::Buffer> kept_;  ///< Under failure_mutex_.
  alignas(64) std::atomic<std::uint64_t> barrier_arrivals_{0};
  alignas(64) Counter barrier_generation_{0};
};

/// How a rank waits: as a fiber or as a thread.
class Waiter {
 public:
  virtual ~Waiter() = default;
  /// Returns when word >= target, or earlier when `until_failure` and the world has failed.
  /// The result is the seconds that the rank did not run.
  virtual double wait(const Counter& word, std::uint64_t target, bool until_failure) = 0;
  /// Lets others run for a moment.
  virtual void pause() = 0;
  /// The rank arrives at a barrier (and does not wait).
  virtual void arrive() = 0;
};

}  // namespace zeropp::hierarchy::virtual_ranks
