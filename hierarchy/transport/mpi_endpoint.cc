#include "hierarchy/transport/mpi_endpoint.h"

#include <fmt/format.h>

#include "hierarchy/transport/mpi_pending.h"
#include "quant/error.h"

namespace zeropp::hierarchy::mpi_ranks {

Endpoint::Endpoint(const Topology& topology, const MpiOptions& options, MPI_Comm comm,
                   News& news, int rank)
    : Transport(topology, rank),
      options_(options),
      comm_(comm),
      news_(news),
      sent_(static_cast<std::size_t>(topology.ranks())),
      received_(sent_.size()) {}

std::string Endpoint::where() const {
  if (sequence() == 0 && barriers_ == 0) return "before its first exchange";
  return fmt::format("in {} hop {}, sequence {}", name(last_call_.collective), last_call_.hop,
                     sequence());
}

void Endpoint::fail(const std::string& text) {
  if (failure_.empty()) failure_ = text;
  throw TransportError(failure_);
}

void Endpoint::throw_if_failed() const {
  if (failed()) throw TransportError(failure_);
}

std::unique_ptr<Pending::Impl> Endpoint::start(const CallInfo& call, std::uint64_t sequence,
                                               std::span<const SendOp> sends,
                                               std::span<const RecvOp> recvs,
                                               quant::Stream /*stream*/) {
  throw_if_failed();
  last_call_ = call;
  last_mpi_call().note(call.collective, sequence);
  return std::make_unique<PendingExchange>(*this, call, sequence, sends, recvs);
}

void Endpoint::barrier() {
  throw_if_failed();
  last_call_ = CallInfo{.collective = Collective::kBarrier};
  ++barriers_;
  last_mpi_call().note(Collective::kBarrier, sequence());
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
  complete(request, [&] {
    return fmt::format("rank {} waits in barrier {}, after sequence {}", rank(), barriers_,
                       sequence());
  });
}

}  // namespace zeropp::hierarchy::mpi_ranks
