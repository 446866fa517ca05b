// Reduce-scatter in hops, innermost first (one hop: all-to-all). Phases of a hop m -> m':
//   outbox: for each member of the group one message with the pieces it will hold at modulus
//   m',
//           tensor by tensor, chunks ascending; the own message too, which stays here
//   inbox:  every member's message for this rank, pieces found by their sizes
//   sums:   piece by piece over the sources in member order, straight from the peers' buffers,
//           into the next hop's outbox (reduce_encode) or into the result (decode_sum)

#include <algorithm>
#include <utility>

#include "hierarchy/collectives/copy.h"
#include "hierarchy/collectives/own_raw.h"
#include "hierarchy/collectives/reduce.h"
#include "hierarchy/collectives/sum.h"
#include "quant/convert.h"

namespace zeropp::hierarchy {
namespace detail {
namespace {

using quant::ConstView;
using quant::Dtype;
using quant::MutView;
using Bytes = std::span<const std::byte>;

/// One hop's messages of this rank.
struct Outbox {
  struct Message {
    Bytes data;
    quant::WireBytes bytes;
  };
  quant::Buffer buffer;
  std::vector<Message> messages;  ///< By member; the own one has no data.
  std::vector<Bytes> own;         ///< By piece of the own message.
};

/// One hop's messages for this rank: wires[piece * sources + s], s in summation order.
struct Inbox {
  std::vector<Bytes> wires;
  std::size_t sources = 0;
  std::vector<std::size_t> first;  ///< By tensor: index of its first piece.
  std::span<const Bytes> of(std::size_t piece) const {
    return std::span(wires).subspan(piece * sources, sources);
  }
};

class HopReduce {
 public:
  explicit HopReduce(const ReduceCall& call)
      : call_(call), rounder_(call), own_raw_(call.reduce.test_own_unrounded) {}

  void run() {
    set_hop(0);
    std::size_t packed = 0;
    for (int j = 0; j < group_.size; ++j) packed += packed_size(j);
    const bool streams = packed >= kStreamBytes;
    Outbox outbox = make_outbox([&](std::size_t t, Piece p, std::span<std::byte> place) {
      const ConstView x = input(t, p);
      if (is_raw(t)) {
        copy(place.data(), x.as_bytes().data(), x.bytes(), streams);
        return x.bytes();
      }
      return wires_[t].codec()->encode(x, context(call_.tensors[t], p, 0), place);
    });
    for (int hop = 0; hop < call_.plan.hops(); ++hop) {
      Outbox next;
      Pending pending = start(outbox);
      pending.wait();
      const Inbox inbox = open(outbox, pending);
      if (hop + 1 == call_.plan.hops()) {
        write_results(inbox);
      } else {
        set_hop(hop + 1);
        next = pass_on(inbox);
      }
      pending.release();
      outbox = std::move(next);
    }
  }

 private:
  void set_hop(int hop) {
    hop_ = hop;
    m_ = call_.plan.chain[static_cast<std::size_t>(hop)];
    m_next_ = call_.plan.chain[static_cast<std::size_t>(hop) + 1];
    group_ = hop_group(call_.rank(), m_, m_next_);
    wires_.clear();
    for (const ReduceTensor& t : call_.tensors) {
      wires_.emplace_back(call_.map(t), &call_.codec(t, hop), call_.reduce.wire);
    }
  }

  /// fn(tensor index, Piece) over the message for a member.
  template <class Fn>
  void for_message(int member, Fn&& fn) const {
    const int residue = group_.member(member) % m_next_;
    for (std::size_t t = 0; t < call_.tensors.size(); ++t) {
      for_pieces(call_.map(call_.tensors[t]), m_next_, residue, [&](Piece p) { fn(t, p); });
    }
  }
  ConstView input(std::size_t t, Piece p) const {
    const ReduceTensor& tensor = call_.tensors[t];
    return tensor.in.slice(local_offset(call_.map(tensor), call_.plan.coarse, p.chunk), p.n);
  }
  quant::CodecContext context(const ReduceTensor& t, Piece p, int hop) const {
    auto context =
        codec_context(call_.options, t.tensor, call_.rank(), p.chunk, call_.level(hop));
    const int level_start = call_.comm.transport.topology().group_size(call_.level(hop) - 1);
    context.second_hop = call_.plan.chain[static_cast<std::size_t>(hop)] > level_start;
    context.group_size = static_cast<std::uint32_t>(group_.size);  // Of hop_, which is `hop`.
    context.group_index = static_cast<std::uint32_t>(group_.index);
    return context;
  }
  /// In hop 0 raw elements need no encoder: they can be read where they are.
  bool is_raw(std::size_t t) const {
    return hop_ == 0 && is_copy(*wires_[t].codec(), call_.tensors[t].in.dtype);
  }

  /// The only piece of a message that is sent straight from the input; else a null view.
  ConstView straight(int member) const {
    ConstView only;
    int pieces = 0;
    for_message(member, [&](std::size_t t, Piece p) {
      ++pieces;
      if (is_raw(t)) only = input(t, p);
    });
    return pieces == 1 ? only : ConstView{};
  }
  std::size_t packed_size(int member) const {
    std::size_t size = 0;
    if (member != group_.index && straight(member).data != nullptr) return 0;
    for_message(member, [&](std::size_t t, Piece p) {
      if (member != group_.index || !is_raw(t)) size += wires_[t].size(p.n);
    });
    return size;
  }

  /// encode(tensor index, piece, place) -> bytes written. The own message is not packed where
  /// its elements can be read from the input.
  template <class Encode>
  Outbox make_outbox(Encode&& encode) {
    const CodecTimer timer(call_.comm);
    Outbox box;
    box.messages.resize(static_cast<std::size_t>(group_.size));
    std::size_t capacity = 0;
    for (int j = 0; j < group_.size; ++j) capacity += packed_size(j);
    box.buffer = {call_.comm.memory, quant::MemoryKind::kComm, capacity};
    std::span<std::byte> rest = box.buffer.span();
    for (int j = 0; j < group_.size; ++j) {
      Outbox::Message& message = box.messages[static_cast<std::size_t>(j)];
      const bool own = j == group_.index;
      if (const ConstView raw = straight(j); raw.data != nullptr && !own) {
        message = {raw.as_bytes(), {.exact = raw.bytes()}};
        continue;
      }
      const std::span<std::byte> begin = rest;
      for_message(j, [&](std::size_t t, Piece p) {
        if (own && is_raw(t)) {
          box.own.push_back(input(t, p).as_bytes());
          return;
        }
        std::span<std::byte> place;
        const std::size_t bytes =
            wires_[t].put(p.n, rest, message.bytes, [&](std::span<std::byte> to) {
              const std::size_t written = encode(t, p, to);
              place = to.first(written);
              return written;
            });
        if (own) box.own.emplace_back(place);
        rest = rest.subspan(bytes);
      });
      if (!own) message.data = begin.first(begin.size() - rest.size());
    }
    return box;
  }

  Pending start(const Outbox& outbox) {
    std::size_t incoming = 0;
    bool variable = false;
    for_message(group_.index, [&](std::size_t t, Piece p) {
      incoming += wires_[t].size(p.n);
      variable |= wires_[t].framed();
    });
    Exchange exchange;
    for (int j = 0; j < group_.size; ++j) {
      if (j == group_.index) continue;
      const Outbox::Message& message = outbox.messages[static_cast<std::size_t>(j)];
      exchange.send(group_.member(j), message.data, message.bytes);
      exchange.receive(group_.member(j), nullptr, incoming, variable);
    }
    CallInfo call = call_.plan.call;
    call.hop = static_cast<std::uint8_t>(hop_);
    return exchange.start(call_.comm, call);
  }

  Inbox open(const Outbox& outbox, const Pending& pending) const {
    Inbox box;
    box.sources = static_cast<std::size_t>(group_.size);
    box.wires.resize(outbox.own.size() * box.sources);
    int receive = 0;
    for (int j = 0; j < group_.size; ++j) {
      const bool own = j == group_.index;
      Bytes rest = own || outbox.own.empty() ? Bytes{} : received(pending, receive++);
      const int order = call_.reduce.test_reverse_order ? group_.size - 1 - j : j;
      std::size_t piece = 0;
      for_message(group_.index, [&](std::size_t t, Piece p) {
        box.wires[piece * box.sources + static_cast<std::size_t>(order)] =
            own ? outbox.own[piece] : wires_[t].take(p.n, rest);
        ++piece;
      });
    }
    count_pieces(box);
    return box;
  }
  void count_pieces(Inbox& box) const {
    box.first.assign(call_.tensors.size(), 0);
    std::vector<std::size_t> pieces(call_.tensors.size(), 0);
    for_message(group_.index, [&](std::size_t t, Piece) { ++pieces[t]; });
    for (std::size_t t = 1; t < pieces.size(); ++t) {
      box.first[t] = box.first[t - 1] + pieces[t - 1];
    }
  }
  /// A non-empty chunk's place among the pieces of a shard with modulus m.
  static std::size_t piece_index(const Inbox& box, std::size_t t, Piece p, int m) {
    return box.first[t] + static_cast<std::size_t>(p.chunk / m);
  }

  /// What the sum of a hop is divided by: its fan-out, in the first one times f / N.
  float divisor(int hop) const {
    const auto at = static_cast<std::size_t>(hop);
    const int fan_out = call_.plan.chain[at + 1] / call_.plan.chain[at];
    const double f = hop == 0 ? call_.reduce.predivide : 0;
    return static_cast<float>(f == 0 ? fan_out : fan_out * f / call_.ranks());
  }

  /// Sums of the hop before hop_, encoded into the outbox of hop_.
  Outbox pass_on(const Inbox& inbox) {
    const float by = divisor(hop_ - 1);
    return make_outbox([&](std::size_t t, Piece p, std::span<std::byte> place) {
      const ReduceTensor& tensor = call_.tensors[t];
      const auto wires = inbox.of(piece_index(inbox, t, p, m_));
      const quant::Codec& from = call_.codec(tensor, hop_ - 1);
      const quant::Codec& to = call_.codec(tensor, hop_);
      if (own_raw_.active()) {
        const ConstView sum =
            own_raw_.sum(from, wires, own_source(m_, hop_ - 1), own_input(t, p), by, p.n);
        own_raw_.keep(tensor.tensor, p.chunk, sum);
        return to.encode(sum, context(tensor, p, hop_), place);
      }
      return encode_sum(from, to, wires, p.n, by, context(tensor, p, hop_ - 1),
                        context(tensor, p, hop_), place);
    });
  }

  void write_results(const Inbox& inbox) {
    const CodecTimer timer(call_.comm);
    quant::Buffer scratch;
    for_message(group_.index, [&](std::size_t t, Piece p) {
      const ReduceTensor& tensor = call_.tensors[t];
      const MutView out =
          tensor.out.slice(local_offset(call_.map(tensor), m_next_, p.chunk), p.n);
      const auto wires = inbox.of(piece_index(inbox, t, p, m_next_));
      const quant::Codec& codec = *wires_[t].codec();
      if (own_raw_.active()) {
        const MutView sum = own_raw_.sum(codec, wires, own_source(m_next_, hop_),
                                         own_input(t, p), divisor(hop_), p.n);
        rounder_.round(sum, out);
      } else if (rounder_.is_plain(out.dtype)) {
        decode_sum(codec, wires, divisor(hop_), context(tensor, p, hop_), out);
      } else {
        const std::size_t bytes = p.n * size_of(Dtype::kF32);
        if (scratch.bytes() < bytes) {
          scratch.reset();
          scratch = {call_.comm.memory, quant::MemoryKind::kComm, bytes};
        }
        const MutView sum{scratch.data(), Dtype::kF32, p.n};
        decode_sum(codec, wires, divisor(hop_), context(tensor, p, hop_), sum);
        rounder_.round(sum, out);
      }
    });
  }

  // For the sabotage test_own_unrounded: which source is the own one, and its elements.
  std::size_t own_source(int m_next, int hop) const {
    const HopGroup group =
        hop_group(call_.rank(), call_.plan.chain[static_cast<std::size_t>(hop)], m_next);
    return static_cast<std::size_t>(
        call_.reduce.test_reverse_order ? group.size - 1 - group.index : group.index);
  }
  ConstView own_input(std::size_t t, Piece p) const {
    const ConstView kept = own_raw_.find(call_.tensors[t].tensor, p.chunk);
    return kept.data != nullptr ? kept : input(t, p);
  }

  const ReduceCall& call_;
  ResultRounder rounder_;
  OwnRaw own_raw_;
  int hop_ = 0;
  int m_ = 1;
  int m_next_ = 1;
  HopGroup group_;
  std::vector<PieceWire> wires_;  ///< By tensor.
};

}  // namespace

void run_hop_reduce(const ReduceCall& call) { HopReduce(call).run(); }

}  // namespace detail

void reduce_scatter(Comm& comm, const CallOptions& options, const ReduceOptions& reduce,
                    std::span<const ReduceTensor> tensors) {
  detail::CallPlan plan = detail::plan_call(comm, options, Collective::kReduceScatter);
  plan.call.content = detail::content_of(plan, reduce, tensors);
  const detail::ReduceCall call{comm, options, reduce, std::move(plan), tensors};
  detail::check_reduce(call);
  comm.transport.ledger().collective(call.plan.call);
  detail::run_reduce(call);
}

}  // namespace zeropp::hierarchy
