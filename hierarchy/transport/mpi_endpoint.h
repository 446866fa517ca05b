#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hierarchy/transport.h"
#include "hierarchy/transport/mpi.h"
#include "hierarchy/transport/mpi_wait.h"

namespace zeropp::hierarchy::mpi_ranks {

/// This process' transport, on a communicator of its own.
class Endpoint final : public Transport {
 public:
  Endpoint(const Topology& topology, const MpiOptions& options, MPI_Comm comm, News& news,
           int rank);

  void barrier() override;
  double waited_seconds() const override { return waited_seconds_; }

  /// After the first failure every call throws; messages may be in flight.
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  /// "in all_gather hop 0, sequence 3", or "before its first exchange".
  std::string where() const;

 protected:
  std::unique_ptr<Pending::Impl> start(const CallInfo& call, std::uint64_t sequence,
                                       std::span<const SendOp> sends,
                                       std::span<const RecvOp> recvs,
                                       quant::Stream stream) override;

 private:
  friend class PendingExchange;

  [[noreturn]] void fail(const std::string& text);
  void throw_if_failed() const;
  /// Waits for one request; what() tells what for. False: it is not done and `may_wait` says
  /// no.
  template <class What>
  bool complete(MPI_Request& request, const What& what, bool may_wait = true);

  const MpiOptions& options_;
  MPI_Comm comm_;
  News& news_;
  CallInfo last_call_;
  std::uint64_t barriers_ = 0;
  double waited_seconds_ = 0;
  std::string failure_;
  /// Messages so far, by peer: both sides count alike, so the number is the message's tag.
  std::vector<std::uint64_t> sent_, received_;
};

template <class What>
bool Endpoint::complete(MPI_Request& request, const What& what, bool may_wait) {
  int done = 0;
  check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done != 0 || !may_wait) return done != 0;
  const auto start = std::chrono::steady_clock::now();
  Patience patience(options_, &news_);
  try {
    while (done == 0) {
      patience.pause(what);
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    }
  } catch (const std::exception& e) {
    fail(e.what());
  }
  waited_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return true;
}

}  // namespace zeropp::hierarchy::mpi_ranks
