// Bytes and messages of the collectives by formula. B(m, q) is what a message with the shard of
// residue q at modulus m takes on the wire; every algorithm sends shards:
//   hops        all-gather m' -> m:      B(m', own) to each other member of the group
//               reduce-scatter m -> m':  B(m', theirs) to each other member
//   ring        all-gather:              every block of the group but the next rank's, to the
//   next
//               reduce-scatter:          every block of the group but the own one, to the next
//   all-to-all  m -> m':                 m * N/m' blocks to each other member
//   broadcast                            the data, once to each rank that still lacks it

#include "hierarchy/cost.h"

#include <algorithm>

#include "quant/error.h"

namespace zeropp::hierarchy {
namespace {

using quant::WireBytes;

WireBytes times(const WireBytes& b, std::uint64_t n) {
  return {.payload = b.payload * n,
          .scale = b.scale * n,
          .padding = b.padding * n,
          .exact = b.exact * n};
}

WireBytes operator-(const WireBytes& a, const WireBytes& b) {
  return {.payload = a.payload - b.payload,
          .scale = a.scale - b.scale,
          .padding = a.padding - b.padding,
          .exact = a.exact - b.exact};
}

/// One span of n elements; variable-rate codecs send its size too, as a u64.
WireBytes span_bytes(std::size_t n, const quant::Codec* codec, quant::Dtype raw) {
  if (n == 0) return {};
  if (codec == nullptr) return {.exact = n * size_of(raw)};
  WireBytes bytes = codec->wire_bytes(n);
  if (!codec->traits().fixed_rate) bytes.scale += sizeof(std::uint64_t);
  return bytes;
}

/// A tensor as one exchange sees it.
struct Wire {
  std::size_t numel;
  const quant::Codec* codec;
  quant::Dtype raw;
};

/// B(m, q) of one tensor: of the full chunks c = 0 .. full-1 those with c mod m == q, and the
/// tail if it is chunk `full`.
WireBytes shard_bytes(const Wire& wire, int world, int m, int q) {
  const std::size_t elems = ChunkMap{wire.numel, world}.chunk_elems();
  if (elems == 0) return {};
  const auto full = static_cast<int>(wire.numel / elems);
  const int whole_chunks = full > q % m ? (full - q % m - 1) / m + 1 : 0;
  WireBytes bytes =
      times(span_bytes(elems, wire.codec, wire.raw), static_cast<std::uint64_t>(whole_chunks));
  if (full % m == q % m) bytes += span_bytes(wire.numel % elems, wire.codec, wire.raw);
  return bytes;
}
WireBytes message_bytes(std::span<const Wire> wires, int world, int m, int q) {
  WireBytes bytes;
  for (const Wire& wire : wires) bytes += shard_bytes(wire, world, m, q);
  return bytes;
}

void pay(Cost& cost, const Topology& t, int from, int to, const WireBytes& bytes,
         std::uint64_t messages = 1) {
  if (bytes.total() == 0 || messages == 0) return;
  cost.by_link[t.link_class(from, to)] += {.bytes = bytes, .messages = messages};
}

/// The call's group: ranks that agree mod coarse inside a block of `fine` ranks.
struct Group {
  int coarse, fine;
  std::vector<int> chain;
  int first(int rank) const { return rank - rank % fine + rank % coarse; }
  int size() const { return fine / coarse; }
};
Group group_of(const Topology& t, const CallOptions& o) {
  const int fine = o.fine == 0 ? t.ranks() : o.fine;
  if (fine < 1 || t.ranks() % fine != 0) {
    throw UsageError("cost", "a fine modulus that divides " + std::to_string(t.ranks()),
                     std::to_string(fine));
  }
  return {.coarse = o.coarse, .fine = fine, .chain = hop_chain(t, o.algorithm, o.coarse, fine)};
}
bool is_ring(const CallOptions& o) { return o.algorithm == Algorithm::kRing; }

/// Ring: all blocks of the group but one, to the next rank.
Cost ring_cost(const Topology& t, int rank, const Group& g, std::span<const Wire> wires,
               bool gather) {
  Cost cost;
  if (g.size() == 1) return cost;
  const int first = g.first(rank);
  const int next = rank + g.coarse < first + g.fine ? rank + g.coarse : first;
  const int left_out = gather ? next : rank;
  // All blocks of the group together are the shard at the coarse modulus, span by span.
  const WireBytes sent = message_bytes(wires, t.ranks(), g.coarse, rank) -
                         message_bytes(wires, t.ranks(), g.fine, left_out);
  std::uint64_t messages = 0;
  for (int owner = first; owner < first + g.fine; owner += g.coarse) {
    const bool any = message_bytes(wires, t.ranks(), g.fine, owner).total() > 0;
    if (owner != left_out && any) ++messages;
  }
  pay(cost, t, rank, next, sent, messages);
  cost.steps = g.size() - 1;
  return cost;
}

/// fn(m, m', peer) for every other member of every hop's group.
template <class Fn>
void for_peers(const Group& g, int rank, Fn&& fn) {
  for (std::size_t i = 1; i < g.chain.size(); ++i) {
    const int m = g.chain[i - 1];
    const int m_next = g.chain[i];
    const int first = rank - rank % m_next + rank % m;
    for (int peer = first; peer < first + m_next; peer += m) {
      if (peer != rank) fn(m, m_next, peer);
    }
  }
}
int hops(const Group& g) { return static_cast<int>(g.chain.size()) - 1; }

Cost gather_cost(const Topology& t, int rank, const CallOptions& o,
                 std::span<const Wire> wires) {
  const Group g = group_of(t, o);
  if (is_ring(o)) return ring_cost(t, rank, g, wires, true);
  Cost cost;
  for_peers(g, rank, [&](int, int m_next, int peer) {
    pay(cost, t, rank, peer, message_bytes(wires, t.ranks(), m_next, rank));
  });
  cost.steps = hops(g);
  return cost;
}

std::vector<Wire> reduce_wires(std::span<const CostTensor> tensors, quant::Dtype wire,
                               std::size_t level) {
  std::vector<Wire> wires;
  for (const CostTensor& tensor : tensors) {
    const quant::Codec* codec = tensor.codecs.empty() ? nullptr : tensor.codecs[level];
    wires.push_back({tensor.numel, codec, wire});
  }
  return wires;
}

}  // namespace

Cost& Cost::operator+=(const Cost& o) {
  for (const auto& [link, traffic] : o.by_link) by_link[link] += traffic;
  steps += o.steps;
  return *this;
}

Traffic Cost::total() const {
  Traffic sum;
  for (const auto& [link, traffic] : by_link) sum += traffic;
  return sum;
}

Cost all_gather_cost(const Topology& t, int rank, const CallOptions& o,
                     std::span<const CostTensor> tensors) {
  std::vector<Wire> wires;
  for (const CostTensor& tensor : tensors) {
    wires.push_back({tensor.numel, tensor.gather_codec, tensor.dtype});
  }
  return gather_cost(t, rank, o, wires);
}

Cost reduce_scatter_cost(const Topology& t, int rank, const CallOptions& o,
                         const ReduceOptions& r, std::span<const CostTensor> tensors) {
  const Group g = group_of(t, o);
  if (is_ring(o)) {
    std::vector<Wire> wires;
    for (const CostTensor& tensor : tensors) wires.push_back({tensor.numel, nullptr, r.wire});
    return ring_cost(t, rank, g, wires, false);
  }
  Cost cost;
  for_peers(g, rank, [&](int, int m_next, int peer) {
    const auto level = static_cast<std::size_t>(hop_level(t, m_next));
    const auto wires = reduce_wires(tensors, r.wire, level);
    pay(cost, t, rank, peer, message_bytes(wires, t.ranks(), m_next, peer));
  });
  cost.steps = hops(g);
  return cost;
}

Cost all_reduce_cost(const Topology& t, int rank, const CallOptions& o, const ReduceOptions& r,
                     std::span<const CostTensor> tensors) {
  Cost cost = reduce_scatter_cost(t, rank, o, r, tensors);
  std::vector<Wire> wires;
  for (const CostTensor& tensor : tensors) wires.push_back({tensor.numel, nullptr, r.wire});
  return cost += gather_cost(t, rank, o, wires);
}

Cost all_to_all_cost(const Topology& t, int rank, const CallOptions& o,
                     const CostTensor& tensor) {
  const Group g = group_of(t, o);
  const WireBytes block = span_bytes(tensor.numel, tensor.gather_codec, tensor.dtype);
  Cost cost;
  for_peers(g, rank, [&](int m, int m_next, int peer) {
    const auto blocks =
        static_cast<std::uint64_t>(m) * static_cast<std::uint64_t>(t.ranks() / m_next);
    pay(cost, t, rank, peer, times(block, blocks));
  });
  cost.steps = hops(g);
  return cost;
}

Cost broadcast_cost(const Topology& t, int rank, const CallOptions& o, int root,
                    const CostTensor& tensor) {
  const WireBytes data = span_bytes(tensor.numel, tensor.gather_codec, tensor.dtype);
  Cost cost;
  if (is_ring(o)) {
    const int next = (rank + 1) % t.ranks();
    if (next != root) pay(cost, t, rank, next, data);
    cost.steps = t.ranks() - 1;
    return cost;
  }
  const Group g = group_of(t, o);
  for_peers(g, rank, [&](int, int m_next, int peer) {
    if (rank % m_next == root % m_next) pay(cost, t, rank, peer, data);
  });
  cost.steps = hops(g);
  return cost;
}

Cost gather_scalars_cost(const Topology& t, int rank, std::size_t doubles) {
  const CallOptions hierarchical;
  const Group g = group_of(t, hierarchical);
  Cost cost;
  for_peers(g, rank, [&](int, int m_next, int peer) {
    const std::uint64_t held = static_cast<std::uint64_t>(t.ranks() / m_next) * doubles;
    pay(cost, t, rank, peer, {.exact = held * sizeof(double)});
  });
  cost.steps = hops(g);
  return cost;
}

}  // namespace zeropp::hierarchy
