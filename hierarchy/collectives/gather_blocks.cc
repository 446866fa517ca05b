#include "hierarchy/collectives/copy.h"
#include "hierarchy/collectives/gather.h"

namespace zeropp::hierarchy::detail {
namespace {

void check(const GatherTensor& t, const ChunkMap& map, const CallPlan& plan, int rank) {
  check_elems("shard", t.tensor, shard_elems(map, plan.fine, rank), t.shard.n);
  check_elems("out", t.tensor, shard_elems(map, plan.coarse, rank), t.out.n);
  check_exact_dtypes(t.codec, t.shard.dtype, t.out.dtype);
}

}  // namespace

GatherBlocks::GatherBlocks(Comm& comm, const CallOptions& options, CallPlan plan,
                           std::span<const GatherTensor> tensors)
    : comm_(comm), options_(options), plan_(std::move(plan)) {
  items_.reserve(tensors.size());
  std::size_t written = 0;
  for (const GatherTensor& t : tensors) {
    const ChunkMap map{t.numel, comm.size()};
    check(t, map, plan_, comm.rank());
    items_.push_back({t, map, PieceWire(map, t.codec, t.shard.dtype)});
    variable_ |= items_.back().wire.framed();
    coded_ |= t.codec != nullptr;
    written += t.out.bytes();
  }
  streams_ = written >= kStreamBytes;
}

std::size_t GatherBlocks::max_size(int residue) const {
  std::size_t bytes = 0;
  for (const Item& item : items_) {
    for_pieces(item.map, plan_.fine, residue, [&](Piece p) { bytes += item.wire.size(p.n); });
  }
  return bytes;
}

GatherBlocks::Single GatherBlocks::single(int residue) const {
  Single found;
  int pieces = 0;
  for (const Item& item : items_) {
    for_pieces(item.map, plan_.fine, residue, [&](Piece p) {
      ++pieces;
      found = {&item, p};
    });
    if (pieces > 1) return {};
  }
  if (pieces == 0 || found.item->wire.codec() != nullptr) return {};
  return found;
}

bool GatherBlocks::is_direct(int residue) const { return single(residue).item != nullptr; }

std::span<const std::byte> GatherBlocks::own_direct() const {
  return single(own_residue()).item->tensor.shard.as_bytes();
}

std::span<std::byte> GatherBlocks::direct_place(int residue) const {
  const Single s = single(residue);
  return s.item->tensor.out
      .slice(local_offset(s.item->map, plan_.coarse, s.piece.chunk), s.piece.n)
      .as_bytes();
}

std::size_t GatherBlocks::pack(std::span<std::byte> to) {
  const CodecTimer timer(comm_, coded_);
  const int level = hop_level(comm_.transport.topology(), plan_.fine);
  std::size_t at = 0;
  quant::WireBytes booked;
  for (const Item& item : items_) {
    for_pieces(item.map, plan_.fine, own_residue(), [&](Piece p) {
      const auto x = item.tensor.shard.slice(local_offset(item.map, plan_.fine, p.chunk), p.n);
      const auto context = codec_context(options_, item.tensor.tensor, p.chunk, p.chunk, level);
      at += item.wire.encode(x, context, to.subspan(at), booked);
    });
  }
  return at;
}

void GatherBlocks::unpack(int residue, std::span<const std::byte>& rest) {
  const CodecTimer timer(comm_, coded_);
  const int level = hop_level(comm_.transport.topology(), plan_.fine);
  for (const Item& item : items_) {
    for_pieces(item.map, plan_.fine, residue, [&](Piece p) {
      const auto bytes = item.wire.take(p.n, rest);
      const auto out =
          item.tensor.out.slice(local_offset(item.map, plan_.coarse, p.chunk), p.n);
      if (item.tensor.codec != nullptr) {
        const auto context =
            codec_context(options_, item.tensor.tensor, comm_.rank(), p.chunk, level);
        item.tensor.codec->decode_with(bytes, context, out);
      } else {
        copy(out.as_bytes().data(), bytes.data(), bytes.size(), streams_);
      }
    });
  }
}

quant::WireBytes GatherBlocks::book(int residue, std::span<const std::byte>& rest) const {
  quant::WireBytes booked;
  for (const Item& item : items_) {
    for_pieces(item.map, plan_.fine, residue, [&](Piece p) {
      booked += item.wire.actual(p.n, item.wire.take(p.n, rest).size());
    });
  }
  return booked;
}

}  // namespace zeropp::hierarchy::detail
