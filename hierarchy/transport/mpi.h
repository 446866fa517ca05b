#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

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
  /// Rank 0's value, on all ranks. TransportError if it does not come in time.
  std::uint64_t from_root(std::uint64_t value, std::chrono::milliseconds timeout) const;
  /// MPI_Abort: ends every process of the run, with this exit code.
  [[noreturn]] void abort(int code) const;

 private:
  bool owner_ = false;
};

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
/// header of 32 bytes with its call, sequence and size (not in the ledger), and both sides of
/// it are compared. Views are buffers of the transport's own.
///
/// When the body has ended on all ranks, they tell each other. An error that all of them had (a
/// UsageError of the engine, say) is rethrown as it is, and further runs are possible. After
/// anything else (a mismatch, a timeout, a rank that failed alone) run_mpi throws
/// TransportError, messages may be in flight, and the program should end all processes:
/// MpiSession::abort.
void run_mpi(const Topology& topology, const MpiOptions& options,
             const std::function<void(Transport&)>& body);

}  // namespace zeropp::hierarchy
