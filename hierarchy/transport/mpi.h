#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "hierarchy/transport.h"

namespace zeropp::hierarchy {

/// One rank a process, over MPI. Where the build found no MPI the same symbols exist
/// (no_mpi.cc): mpi_available() is false and the rest throws UsageError.
bool mpi_available();

/// The use of MPI by this process: initialised by the first session, finalised by the end of
/// the one that did so. MPI cannot start twice in a process, so keep one for the whole program.
/// One thread alone may use MPI (MPI_THREAD_FUNNELED).
class MpiSession {
 public:
  MpiSession();  ///< UsageError without MPI.
  /// MPI_Finalize waits for all processes. Once a run_mpi has thrown TransportError it is left
  /// out: end with abort() then.
  ~MpiSession();  // NOLINT(performance-trivially-destructible): only without MPI.
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;
  /// For each rank the lowest rank of its machine (MPI_Comm_split_type, MPI_COMM_TYPE_SHARED).
  /// Where the variable ZEROPP_MPI_NODE is set (a number >= 0), ranks that share a machine and
  /// have another value count as other machines: tests. All ranks call it.
  std::vector<int> hosts() const;
  /// Rank 0's value, on all ranks. TransportError if it does not come in time.
  std::uint64_t from_root(std::uint64_t value, std::chrono::milliseconds timeout) const;
  /// MPI_Abort: ends every process of the run, with this exit code.
  [[noreturn]] void abort(int code) const;

 private:
  bool owner_ = false;
};

/// What this process' rank began last, for signal handlers: reading it is async-signal-safe.
class LastMpiCall {
 public:
  void note(Collective collective, std::uint64_t sequence) {
    collective_.store(collective, std::memory_order_relaxed);
    sequence_.store(sequence, std::memory_order_relaxed);
  }
  Collective collective() const { return collective_.load(std::memory_order_relaxed); }
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Collective> collective_{Collective::kOther};
  std::atomic<std::uint64_t> sequence_{0};
};
LastMpiCall& last_mpi_call();

struct MpiOptions {
  std::chrono::milliseconds timeout{60'000};  ///< Without progress in a wait.
  /// Larger messages travel in pieces; at most 2^31 - 1, what MPI can count.
  std::size_t piece_bytes = std::size_t{1} << 30;
  /// Not null: a wait ends with TransportError once it is not 0 (a signal's number).
  const std::atomic<int>* stop = nullptr;
};

/// Runs `body` as this process' rank of the topology; every process of the run must call it.
/// UsageError: the topology has not one rank a process.
///
/// Messages, order, ledger and errors are those of run_virtual, bit for bit. Each message has a
/// header of 56 bytes with its call, content, sequence and size (not in the ledger), and both
/// sides of it are compared: the mismatch check (collective, count, dtype, codec, group) costs
/// no message and is always on. Views are buffers of the transport's own.
///
/// Levels have no communicators of their own. Messages name their peer, so a sub-communicator
/// would change nothing but the numbers of ranks; what it could add is MPI's collectives, and
/// those sum in an order of their own, so the bits would differ (law 1). MpiSession::hosts()
/// asks MPI which ranks share a machine.
///
/// A rank that fails tells all others, and they throw its words within min(2 s, timeout / 2).
/// When the body has ended on all ranks, they tell each other. An error that all of them had (a
/// UsageError of the engine, say) is rethrown as it is, and further runs are possible. After
/// anything else (a mismatch, a timeout, a rank that failed alone) run_mpi throws
/// TransportError, messages may be in flight, and the program should end all processes:
/// MpiSession::abort.
void run_mpi(const Topology& topology, const MpiOptions& options,
             const std::function<void(Transport&)>& body);

}  // namespace zeropp::hierarchy
