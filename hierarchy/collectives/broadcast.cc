// Broadcast. ring: a chain from the root round to the rank before it; all_to_all: the root
// sends to all; hierarchical: outermost hop first. Before the hop m -> m' the ranks that agree
// with the root mod m' hold the data (before the first one the root alone).

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "hierarchy/collectives/common.h"
#include "quant/error.h"

namespace zeropp::hierarchy {
namespace detail {
namespace {

class Broadcast {
 public:
  Broadcast(Comm& comm, CallPlan plan, int root, const PieceWire& wire, std::size_t n)
      : comm_(comm), plan_(std::move(plan)), root_(root), wire_(wire), n_(n) {}

  /// `message` is the data at the root; elsewhere it is received into `room`. Returns the data.
  std::span<const std::byte> run(std::span<const std::byte> message,
                                 std::span<std::byte> room) {
    message_ = message;
    room_ = room;
    if (plan_.call.algorithm == Algorithm::kRing) {
      chain();
    } else {
      for (int hop = 0; hop < plan_.hops(); ++hop) fan_out(hop);
    }
    return message_;
  }

 private:
  void chain() {
    const int n = comm_.size();
    const int distance = (comm_.rank() - root_ + n) % n;
    exchange(0, distance > 0 ? (comm_.rank() + n - 1) % n : kNobody, {});
    if (distance + 1 < n) {
      exchange(0, kNobody, {(comm_.rank() + 1) % n});
    } else {
      exchange(0, kNobody, {});
    }
  }

  void fan_out(int hop) {
    const auto at = static_cast<std::size_t>(plan_.hops() - hop);
    const int m = plan_.chain[at - 1];
    const int m_next = plan_.chain[at];
    const HopGroup group = hop_group(comm_.rank(), m, m_next);
    const int holder = root_ % m_next / m;
    if (comm_.rank() % m != root_ % m) {
      exchange(hop, kNobody, {});
    } else if (group.index != holder) {
      exchange(hop, group.member(holder), {});
    } else {
      std::vector<int> peers;
      for (int j = 0; j < group.size; ++j) {
        if (j != holder) peers.push_back(group.member(j));
      }
      exchange(hop, kNobody, peers);
    }
  }

  /// On every rank, also without messages: sequence numbers stay equal.
  void exchange(int hop, int from, const std::vector<int>& peers) {
    Exchange messages;
    int index = -1;
    if (from != kNobody) {
      index = messages.receive(from, room_.data(), room_.size(), wire_.framed());
    }
    for (const int peer : peers) messages.send(peer, message_, booked());
    CallInfo call = plan_.call;
    call.hop = static_cast<std::uint8_t>(hop);
    Pending pending = messages.start(comm_, call);
    pending.wait();
    if (from != kNobody) message_ = room_.first(received(pending, index).size());
    pending.release();
  }
  quant::WireBytes booked() const {
    auto rest = message_;
    return wire_.actual(n_, wire_.take(n_, rest).size());
  }

  static constexpr int kNobody = -1;
  Comm& comm_;
  CallPlan plan_;
  int root_;
  const PieceWire& wire_;
  std::size_t n_;
  std::span<const std::byte> message_;
  std::span<std::byte> room_;
};

}  // namespace
}  // namespace detail

void broadcast(Comm& comm, const CallOptions& options, int root, quant::MutView data,
               const quant::Codec* codec) {
  detail::CallPlan plan = detail::plan_world_call(comm, options, Collective::kBroadcast);
  if (root < 0 || root >= comm.size()) {
    throw UsageError("collectives", fmt::format("a root in [0, {})", comm.size()),
                     std::to_string(root));
  }
  detail::refuse_difference(codec, Collective::kBroadcast);
  comm.transport.ledger().collective(plan.call);
  detail::ContentHash hash(plan, codec == nullptr ? data.dtype : quant::Dtype::kF32);
  hash.add(static_cast<std::uint32_t>(root), data.n, codec);
  plan.call.content = hash.content();
  if (data.n == 0) return;
  const detail::PieceWire wire({data.n, 1}, codec, data.dtype);
  const int level = hop_level(comm.transport.topology(), plan.fine);
  const bool is_root = comm.rank() == root;
  detail::Broadcast run(comm, std::move(plan), root, wire, data.n);
  if (codec == nullptr) {
    run.run(data.as_bytes(), data.as_bytes());
    return;
  }
  quant::Buffer room(comm.memory, quant::MemoryKind::kComm, wire.size(data.n));
  std::span<const std::byte> message;
  if (is_root) {
    const detail::CodecTimer timer(comm);
    quant::WireBytes booked;
    const auto context = detail::codec_context(options, 0, root, 0, level);
    message = room.span().first(wire.encode(data, context, room.span(), booked));
  }
  message = run.run(message, room.span());
  const detail::CodecTimer timer(comm);
  codec->decode_with(wire.take(data.n, message),
                     detail::codec_context(options, 0, comm.rank(), 0, level), data);
}

}  // namespace zeropp::hierarchy
