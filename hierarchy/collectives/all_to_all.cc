// All-to-all in hops, innermost first (one hop: direct). After the hop m -> m' a rank holds the
// blocks from all sources in its block of m' ranks to all destinations that agree with it
// mod m'. A message lists its blocks by source, then destination.

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "hierarchy/collectives/common.h"
#include "quant/error.h"

namespace zeropp::hierarchy {
namespace detail {
namespace {

using Bytes = std::span<const std::byte>;

class HopAllToAll {
 public:
  HopAllToAll(Comm& comm, const CallOptions& options, CallPlan plan, const AllToAllArgs& args)
      : comm_(comm),
        options_(options),
        plan_(std::move(plan)),
        args_(args),
        // Every block is one piece: a map whose chunks have n elements.
        wire_({args.n * static_cast<std::size_t>(comm.size()), comm.size()}, args.codec,
              args.in.dtype),
        held_(static_cast<std::size_t>(comm.size())) {}

  void run() {
    if (args_.n == 0) return;
    encode_inputs();
    for (int hop = 0; hop < plan_.hops(); ++hop) {
      if (hop + 1 == plan_.hops()) {
        last_hop(hop);
      } else {
        middle_hop(hop);
      }
    }
    if (plan_.hops() == 0) deliver(0, held_[0]);
  }

 private:
  int rank() const { return comm_.rank(); }
  std::size_t element_bytes() const { return args_.n * size_of(args_.in.dtype); }
  CallInfo call(int hop) const {
    CallInfo info = plan_.call;
    info.hop = static_cast<std::uint8_t>(hop);
    return info;
  }
  int modulus(int at) const { return plan_.chain[static_cast<std::size_t>(at)]; }

  void encode_inputs() {
    const auto n = static_cast<std::size_t>(comm_.size());
    if (args_.codec == nullptr) {
      for (std::size_t dst = 0; dst < n; ++dst) {
        held_[dst] = args_.in.slice(dst * args_.n, args_.n).as_bytes();
      }
      return;
    }
    const CodecTimer timer(comm_);
    const int level = hop_level(comm_.transport.topology(), plan_.fine);
    encoded_ = {comm_.memory, quant::MemoryKind::kComm, n * wire_.size(args_.n)};
    auto rest = encoded_.span();
    for (std::size_t dst = 0; dst < n; ++dst) {
      const auto context = codec_context(options_, 0, rank(), static_cast<int>(dst), level);
      quant::WireBytes booked;
      const std::size_t bytes =
          wire_.encode(args_.in.slice(dst * args_.n, args_.n), context, rest, booked);
      held_[dst] = rest.first(bytes);  // With its frame: blocks travel on as they are.
      rest = rest.subspan(bytes);
    }
  }

  /// Index in held_ of a block: source within the block of m ranks, destination by order.
  std::size_t index(int m, int source, int destination) const {
    return static_cast<std::size_t>((source % m) * (comm_.size() / m) + destination / m);
  }
  /// fn(held block) for the message to a peer, in wire order.
  template <class Fn>
  void for_message(int m, int m_next, int peer, Fn&& fn) const {
    for (int source = 0; source < m; ++source) {
      for (int dst = peer % m_next; dst < comm_.size(); dst += m_next) {
        fn(held_[index(m, source, dst)]);
      }
    }
  }
  std::size_t blocks(int m, int m_next) const {
    return static_cast<std::size_t>(m) * static_cast<std::size_t>(comm_.size() / m_next);
  }
  quant::WireBytes book(Bytes message) const {
    quant::WireBytes booked;
    while (!message.empty()) {
      booked += wire_.actual(args_.n, wire_.take(args_.n, message).size());
    }
    return booked;
  }
  /// The front block of a message, with its frame.
  Bytes take_framed(Bytes& message) const {
    const Bytes begin = message;
    wire_.take(args_.n, message);
    return begin.first(begin.size() - message.size());
  }

  struct Hop {
    HopGroup group;
    quant::Buffer outbox;
    Pending pending;  ///< Last: released before the buffer that it lends.
  };
  Hop start(int hop) {
    const int m = modulus(hop);
    const int m_next = modulus(hop + 1);
    Hop h{.group = hop_group(rank(), m, m_next), .outbox = {}, .pending = {}};
    const std::size_t largest = blocks(m, m_next) * wire_.size(args_.n);
    const bool straight = blocks(m, m_next) == 1;
    if (!straight) {
      h.outbox = {comm_.memory, quant::MemoryKind::kComm,
                  largest * static_cast<std::size_t>(h.group.size - 1)};
    }
    Exchange exchange;
    std::size_t at = 0;
    for (int j = 0; j < h.group.size; ++j) {
      if (j == h.group.index) continue;
      const int peer = h.group.member(j);
      const std::size_t begin = at;
      Bytes message;
      for_message(m, m_next, peer, [&](Bytes block) {
        message = block;
        if (straight) return;
        std::memcpy(h.outbox.data() + at, block.data(), block.size());
        at += block.size();
      });
      if (!straight) message = h.outbox.span().subspan(begin, at - begin);
      exchange.send(peer, message, book(message));
      exchange.receive(peer, place(hop, peer), largest, wire_.framed());
    }
    h.pending = exchange.start(comm_, call(hop));
    return h;
  }
  /// Exact blocks of a direct exchange go straight to their place in the output.
  std::byte* place(int hop, int source) const {
    if (args_.codec != nullptr || hop > 0 || plan_.hops() != 1) return nullptr;
    return output(source).as_bytes().data();
  }
  quant::MutView output(int source) const {
    return args_.out.slice(static_cast<std::size_t>(source) * args_.n, args_.n);
  }

  /// fn(source, destination, block with frame) over the own blocks that stay and all received.
  template <class Fn>
  void for_arrived(int hop, const Hop& h, Fn&& fn) const {
    const int m = modulus(hop);
    const int m_next = modulus(hop + 1);
    int receive = 0;
    for (int j = 0; j < h.group.size; ++j) {
      const int peer = h.group.member(j);
      const bool own = j == h.group.index;
      Bytes message = own ? Bytes{} : received(h.pending, receive++);
      const int first = peer / m * m;
      for (int source = first; source < first + m; ++source) {
        for (int dst = rank() % m_next; dst < comm_.size(); dst += m_next) {
          fn(source, dst, own ? held_[index(m, source, dst)] : take_framed(message));
        }
      }
    }
  }

  void middle_hop(int hop) {
    Hop h = start(hop);
    h.pending.wait();
    std::size_t total = 0;
    for_arrived(hop, h, [&](int, int, Bytes block) { total += block.size(); });
    quant::Buffer next(comm_.memory, quant::MemoryKind::kComm, total);
    std::vector<Bytes> held(held_.size());
    std::size_t at = 0;
    for_arrived(hop, h, [&](int source, int dst, Bytes block) {
      std::memcpy(next.data() + at, block.data(), block.size());
      held[index(modulus(hop + 1), source, dst)] = next.span().subspan(at, block.size());
      at += block.size();
    });
    h.pending.release();
    encoded_ = std::move(next);
    held_ = std::move(held);
  }

  void last_hop(int hop) {
    Hop h = start(hop);
    h.pending.wait();
    const bool placed = place(hop, rank()) != nullptr;
    for_arrived(hop, h, [&](int source, int, Bytes block) {
      if (!placed || source == rank()) deliver(source, block);
    });
    h.pending.release();
  }

  void deliver(int source, Bytes block) {
    const Bytes bytes = wire_.take(args_.n, block);
    if (args_.codec == nullptr) {
      std::memcpy(output(source).data, bytes.data(), bytes.size());
      return;
    }
    const CodecTimer timer(comm_);
    args_.codec->decode(bytes, output(source));
  }

  Comm& comm_;
  const CallOptions& options_;
  CallPlan plan_;
  const AllToAllArgs& args_;
  PieceWire wire_;
  std::vector<Bytes> held_;  ///< By index(m, source, destination).
  quant::Buffer encoded_;
};

}  // namespace
}  // namespace detail

void all_to_all(Comm& comm, const CallOptions& options, const AllToAllArgs& args) {
  if (options.algorithm == Algorithm::kRing) {
    throw UsageError("collectives", "all_to_all or hierarchical for an all-to-all", "ring");
  }
  detail::CallPlan plan = detail::plan_world_call(comm, options, Collective::kAllToAll);
  const std::size_t elems = args.n * static_cast<std::size_t>(comm.size());
  detail::check_elems("in", 0, elems, args.in.n);
  detail::check_elems("out", 0, elems, args.out.n);
  detail::check_exact_dtypes(args.codec, args.in.dtype, args.out.dtype);
  detail::refuse_difference(args.codec, Collective::kAllToAll);
  if (args.codec != nullptr && args.codec->traits().receiver_state) {
    throw UsageError("collectives", "an all-to-all whose receivers keep no state",
                     "'" + args.codec->spec() + "'");
  }
  comm.transport.ledger().collective(plan.call);
  detail::ContentHash hash(plan, args.codec == nullptr ? args.in.dtype : quant::Dtype::kF32);
  hash.add(0, elems, args.codec);
  plan.call.content = hash.content();
  detail::HopAllToAll(comm, options, std::move(plan), args).run();
}

}  // namespace zeropp::hierarchy
