#include "hierarchy/transport/mpi_pending.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "hierarchy/transport/describe.h"
#include "quant/error.h"

namespace zeropp::hierarchy::mpi_ranks {
namespace {

constexpr std::uint32_t kMagic = 0x7a70'7031;

/// Tag of a header; its payload has the next one. Message numbers come round after more
/// messages than any pair has in flight; should a sender run further ahead, equal tags keep
/// their order.
int message_tag(std::uint64_t number) { return static_cast<int>(number % 8192) * 2; }

Header make_header(const CallInfo& call, std::uint64_t sequence, std::size_t bytes) {
  return {.magic = kMagic,
          .collective = static_cast<std::uint8_t>(call.collective),
          .algorithm = static_cast<std::uint8_t>(call.algorithm),
          .phase = static_cast<std::uint8_t>(call.phase),
          .role = static_cast<std::uint8_t>(call.role),
          .hop = call.hop,
          .sequence = sequence,
          .bytes = bytes,
          .content = call.content};
}

CallInfo call_of(const Header& h) {
  return {.collective = static_cast<Collective>(h.collective),
          .algorithm = static_cast<Algorithm>(h.algorithm),
          .phase = static_cast<Phase>(h.phase),
          .role = static_cast<quant::Role>(h.role),
          .hop = h.hop,
          .content = h.content};
}

/// post(offset, count) for each piece.
template <class Post>
void in_pieces(std::size_t bytes, std::size_t piece, const Post& post) {
  for (std::size_t at = 0; at < bytes; at += piece) {
    post(at, static_cast<int>(std::min(piece, bytes - at)));
  }
}

}  // namespace

PendingExchange::PendingExchange(Endpoint& endpoint, const CallInfo& call,
                                 std::uint64_t sequence, std::span<const SendOp> sends,
                                 std::span<const RecvOp> recvs)
    : endpoint_(endpoint),
      call_(call),
      sequence_(sequence),
      state_(std::make_unique<State>()),
      unwinding_at_birth_(std::uncaught_exceptions()) {
  state_->receives.resize(recvs.size());
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    Receive& r = state_->receives[i];
    r.op = recvs[i];
    post_header(r);
    if (!r.op.variable) post_payload(r, r.op.bytes);
  }
  state_->sends.resize(sends.size());
  for (std::size_t i = 0; i < sends.size(); ++i) post_send(state_->sends[i], sends[i]);
}

PendingExchange::~PendingExchange() {
  try {
    release();
  } catch (...) {  // The rank's next call throws it again.
  }
  if (released_) return;
  try {  // MPI may still write here: kept for the short rest of the process.
    static auto* const kept = new std::vector<std::unique_ptr<State>>;
    kept->push_back(std::move(state_));
  } catch (...) {
    static_cast<void>(state_.release());
  }
}

void PendingExchange::post_send(Send& send, const SendOp& op) {
  const int tag = message_tag(endpoint_.sent_[static_cast<std::size_t>(op.peer)]++);
  send.peer = op.peer;
  send.header = make_header(call_, sequence_, op.data.size());
  const auto post = [&](const void* data, int count, int with_tag) {
    send.requests.push_back(MPI_REQUEST_NULL);
    check(MPI_Isend(data, count, MPI_BYTE, op.peer, with_tag, endpoint_.comm_,
                    &send.requests.back()),
          "MPI_Isend");
  };
  post(&send.header, sizeof(Header), tag);
  in_pieces(op.data.size(), endpoint_.options_.piece_bytes,
            [&](std::size_t at, int count) { post(op.data.data() + at, count, tag + 1); });
}

void PendingExchange::post_header(Receive& r) {
  r.tag = message_tag(endpoint_.received_[static_cast<std::size_t>(r.op.peer)]++);
  check(MPI_Irecv(&r.header, sizeof(Header), MPI_BYTE, r.op.peer, r.tag, endpoint_.comm_,
                  &r.header_request),
        "MPI_Irecv");
}

void PendingExchange::post_payload(Receive& r, std::size_t bytes) {
  std::byte* into = r.op.into;
  if (into == nullptr && bytes > 0) {
    r.own = std::make_unique_for_overwrite<std::byte[]>(bytes);
    into = r.own.get();
  }
  r.data = {into, bytes};
  in_pieces(bytes, endpoint_.options_.piece_bytes, [&](std::size_t at, int count) {
    r.requests.push_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(into + at, count, MPI_BYTE, r.op.peer, r.tag + 1, endpoint_.comm_,
                    &r.requests.back()),
          "MPI_Irecv");
  });
}

void PendingExchange::wait() {
  if (released_) return;
  endpoint_.throw_if_failed();
  for (; arrived_ < state_->receives.size(); ++arrived_) receive(state_->receives[arrived_]);
}

void PendingExchange::release() {
  if (released_) return;
  wait();
  for (Send& s : state_->sends) {
    for (MPI_Request& request : s.requests) {
      complete(request, [&] {
        return fmt::format(
            "rank {} waits for its {} bytes of {}, sequence {}, to be received by rank {}",
            endpoint_.rank(), s.header.bytes, describe(call_), sequence_, s.peer);
      });
    }
  }
  released_ = true;
}

std::span<const std::byte> PendingExchange::received(std::size_t i) const {
  return state_->receives[i].data;
}

void PendingExchange::receive(Receive& r) {
  const auto what = [&] {
    return fmt::format("rank {} waits for {}{} bytes of {}, sequence {}, from rank {}",
                       endpoint_.rank(), r.op.variable ? "up to " : "", r.op.bytes,
                       describe(call_), sequence_, r.op.peer);
  };
  complete(r.header_request, what);
  if (!matches(r)) endpoint_.fail(mismatch_text(r));
  if (r.op.variable) post_payload(r, r.header.bytes);
  for (MPI_Request& request : r.requests) complete(request, what);
}

bool PendingExchange::matches(const Receive& r) const {
  const bool fits = r.op.variable ? r.header.bytes <= r.op.bytes : r.header.bytes == r.op.bytes;
  return fits && r.header.magic == kMagic && call_of(r.header) == call_ &&
         r.header.content == call_.content;
}

std::string PendingExchange::mismatch_text(const Receive& r) const {
  const std::string expects =
      fmt::format("[mpi] mismatch: rank {} expects {}{} bytes of {}, sequence {}, from rank {}",
                  endpoint_.rank(), r.op.variable ? "up to " : "", r.op.bytes, describe(call_),
                  sequence_, r.op.peer);
  if (r.header.magic != kMagic) return expects + ", which sent something else";
  return fmt::format("{}, which sent {} bytes of {}, sequence {}{}", expects, r.header.bytes,
                     describe(call_of(r.header)), r.header.sequence,
                     describe_difference(call_.content, r.header.content));
}

template <class What>
void PendingExchange::complete(MPI_Request& request, const What& what) {
  // An exception that destroys an exchange in flight must not wait for peers that may never
  // send.
  const bool may_wait = std::uncaught_exceptions() <= unwinding_at_birth_;
  if (endpoint_.complete(request, what, may_wait)) return;
  endpoint_.fail(fmt::format("[mpi] rank {} gave up {} with messages in flight",
                             endpoint_.rank(), endpoint_.where()));
}

}  // namespace zeropp::hierarchy::mpi_ranks
