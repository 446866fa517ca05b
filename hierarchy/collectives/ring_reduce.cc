// Ring reduce-scatter. The partial mean for owner o starts at the rank after o and goes once
// round; every rank adds its own contribution, divided in fp32, and rounds to the wire dtype.
// The order of the sum depends on the owner alone.

#include <algorithm>
#include <utility>
#include <vector>

#include "hierarchy/collectives/copy.h"
#include "hierarchy/collectives/reduce.h"
#include "quant/convert.h"

namespace zeropp::hierarchy::detail {
namespace {

using quant::ConstView;
using quant::Dtype;
using quant::MutView;

class RingReduce {
 public:
  explicit RingReduce(const ReduceCall& call)
      : call_(call),
        group_(hop_group(call.rank(), call.plan.coarse, call.plan.fine)),
        divisor_(static_cast<float>(call.reduce.predivide == 0 ? call.ranks()
                                                               : call.reduce.predivide)),
        rounder_(call),
        sum_(call.comm.memory, quant::MemoryKind::kComm, kSlice * size_of(Dtype::kF32)),
        sizes_(static_cast<std::size_t>(call.plan.fine)) {
    for (const ReduceTensor& t : call.tensors) {
      const ChunkMap map = call.map(t);
      const ShardCounts counts(map, call.plan.fine);
      for (std::size_t r = 0; r < sizes_.size(); ++r) {
        sizes_[r] +=
            (counts.full(r) * map.chunk_elems() + counts.rest(r)) * size_of(call.reduce.wire);
      }
    }
  }

  void run() {
    std::size_t largest = 0;
    for (int j = 0; j < group_.size; ++j) largest = std::max(largest, block_size(j));
    quant::Buffer partial(call_.comm.memory, quant::MemoryKind::kComm, largest);
    quant::Buffer next(call_.comm.memory, quant::MemoryKind::kComm, largest);
    add(ahead(-1), {}, partial.data());
    for (int step = 0; step + 1 < group_.size; ++step) {
      const int owner = ahead(-2 - step);
      const std::size_t sent = block_size(ahead(-1 - step));
      Exchange exchange;
      exchange.send(rank(ahead(1)), partial.span().first(sent), {.exact = sent});
      const int index = exchange.receive(rank(ahead(-1)), nullptr, block_size(owner));
      Pending pending = exchange.start(call_.comm, call_.plan.call);
      pending.wait();
      add(owner, received(pending, index), next.data());
      pending.release();
      partial.swap(next);
    }
  }

 private:
  /// Ring position of this rank; the sabotage goes round the other way.
  int position() const {
    return call_.reduce.test_reverse_order ? group_.size - 1 - group_.index : group_.index;
  }
  int ahead(int steps) const {
    return ((position() + steps) % group_.size + group_.size) % group_.size;
  }
  int rank(int position) const {
    return group_.member(call_.reduce.test_reverse_order ? group_.size - 1 - position
                                                         : position);
  }
  int residue(int position) const { return rank(position) % call_.plan.fine; }

  std::size_t block_size(int owner) const {
    return sizes_[static_cast<std::size_t>(residue(owner))];
  }

  /// One piece that is added: where the own contribution and the result are, and where the
  /// piece begins in the message.
  struct Part {
    ConstView x;
    MutView out;
    std::size_t at = 0;
  };

  /// Adds the own contribution to what came for that owner (nothing: the first one); the sum
  /// goes to `to`, or to the outputs if this rank is the owner.
  void add(int owner, std::span<const std::byte> came, std::byte* to) {
    const CodecTimer timer(call_.comm);
    const Dtype wire = call_.reduce.wire;
    const bool mine = owner == position();
    list_parts(owner, mine);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      // Gradients of other layers were written long ago, a short piece in each.
      if (i + kAhead < parts_.size()) prefetch(parts_[i + kAhead].x.as_bytes());
      const Part& p = parts_[i];
      const ConstView before{came.empty() ? nullptr : came.data() + p.at, wire, p.x.n};
      if (mine) {
        finish(p.x, before, p.out);
      } else {
        pass_on(p.x, before, {to + p.at, wire, p.x.n});
      }
    }
  }

  void list_parts(int owner, bool mine) {
    parts_.clear();
    std::size_t at = 0;
    for (const ReduceTensor& t : call_.tensors) {
      const ChunkMap map = call_.map(t);
      for_pieces(map, call_.plan.fine, residue(owner), [&](Piece p) {
        const auto x = t.in.slice(local_offset(map, call_.plan.coarse, p.chunk), p.n);
        MutView out{};
        if (mine) out = t.out.slice(local_offset(map, call_.plan.fine, p.chunk), p.n);
        parts_.push_back({x, out, at});
        at += p.n * size_of(call_.reduce.wire);
      });
    }
  }

  void pass_on(ConstView x, ConstView before, MutView to) {
    const std::uint64_t underflow = quant::divide_add(x, divisor_, before, to);
    if (call_.options.underflow != nullptr) *call_.options.underflow += underflow;
  }

  void finish(ConstView x, ConstView before, MutView out) {
    if (rounder_.is_direct(out.dtype)) return pass_on(x, before, out);
    for (std::size_t first = 0; first < x.n; first += kSlice) {
      const std::size_t n = std::min(kSlice, x.n - first);
      const MutView sum{sum_.data(), Dtype::kF32, n};
      quant::divide(x.slice(first, n), divisor_, sum);
      if (before.data != nullptr) quant::accumulate(sum, before.slice(first, n));
      rounder_.round(sum, out.slice(first, n));
    }
  }

  static constexpr std::size_t kAhead = 2;

  const ReduceCall& call_;
  HopGroup group_;
  float divisor_;
  std::vector<Part> parts_;  ///< Of the owner in hand.
  ResultRounder rounder_;
  quant::Buffer sum_;
  std::vector<std::size_t> sizes_;  ///< Bytes of a block by residue.
};

}  // namespace

void run_ring_reduce(const ReduceCall& call) { RingReduce(call).run(); }

}  // namespace zeropp::hierarchy::detail
