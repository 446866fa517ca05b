#pragma once

#include <chrono>
#include <functional>

#include "hierarchy/transport.h"

namespace zeropp::hierarchy {

/// Virtual ranks in this process: fibers on a few worker threads, each owning a fixed slice of
/// consecutive ranks (or, for debugging and TSan, one thread a rank).
struct VirtualOptions {
  int workers = 0;  ///< 0 = one per core, never more than ranks.
  bool thread_per_rank = false;
  std::chrono::milliseconds timeout{60'000};  ///< Without progress: every rank throws.
  /// Guarded, pooled; untouched pages are free.
  std::size_t stack_bytes = std::size_t{2} << 20;
  /// Test hook: called at every exchange on the calling rank; may sleep or throw.
  std::function<void(int rank, const CallInfo&, std::uint64_t sequence)> on_exchange;
};

/// Runs `body` once per rank of the topology, as ordinary SPMD code, and returns when all have
/// ended. A throw on one rank ends every rank; the first rank's error is rethrown with the
/// rank, its last collective and its sequence number in the text (UsageError stays UsageError;
/// other exceptions become TransportError only if they are not already one of the two
/// families).
void run_virtual(const Topology& topology, const VirtualOptions& options,
                 const std::function<void(Transport&)>& body);

/// Number of workers that run_virtual would use.
int virtual_workers(const Topology& topology, const VirtualOptions& options);

}  // namespace zeropp::hierarchy
