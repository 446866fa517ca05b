#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hierarchy/transport/mpi_endpoint.h"

namespace zeropp::hierarchy::mpi_ranks {

/// What goes before every message, on a tag next to it.
struct Header {
  std::uint32_t magic = 0;
  std::uint8_t collective = 0, algorithm = 0, phase = 0, role = 0, hop = 0;
  std::uint8_t unused[7] = {};
  std::uint64_t sequence = 0;  ///< Of the sender's exchange.
  std::uint64_t bytes = 0;     ///< Of the message; 0: nothing follows.
  CallContent content;
};
static_assert(sizeof(Header) == 56);

/// Messages of one exchange. Everything whose size is known is posted at once, so ranks may
/// wait for their exchanges in any order; a message of variable size is received when its
/// header is here.
class PendingExchange final : public Pending::Impl {
 public:
  PendingExchange(Endpoint& endpoint, const CallInfo& call, std::uint64_t sequence,
                  std::span<const SendOp> sends, std::span<const RecvOp> recvs);
  ~PendingExchange() override;

  void wait() override;
  void release() override;
  std::span<const std::byte> received(std::size_t i) const override;

 private:
  struct Send {
    int peer = 0;
    Header header;
    std::vector<MPI_Request> requests;
  };
  struct Receive {
    RecvOp op;
    int tag = 0;
    Header header;
    MPI_Request header_request = MPI_REQUEST_NULL;
    std::vector<MPI_Request> requests;
    std::unique_ptr<std::byte[]> own;  ///< Where the caller gave no place.
    std::span<const std::byte> data;
  };
  /// What MPI may still touch after a failure.
  struct State {
    std::vector<Send> sends;
    std::vector<Receive> receives;
  };

  void post_send(Send& send, const SendOp& op);
  void post_header(Receive& receive);
  void post_payload(Receive& receive, std::size_t bytes);
  void receive(Receive& receive);
  bool matches(const Receive& receive) const;
  std::string mismatch_text(const Receive& receive) const;
  template <class What>
  void complete(MPI_Request& request, const What& what);

  Endpoint& endpoint_;
  CallInfo call_;
  std::uint64_t sequence_;
  std::unique_ptr<State> state_;
  std::size_t arrived_ = 0;  ///< Receives before it are done.
  int unwinding_at_birth_;
  bool released_ = false;
};

}  // namespace zeropp::hierarchy::mpi_ranks
