#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "hierarchy/collectives/copy.h"
#include "hierarchy/collectives/gather.h"
#include "quant/convert.h"
#include "quant/error.h"

namespace zeropp::hierarchy::detail {
namespace {

void check(const GatherTensor& t, const ChunkMap& map, const CallPlan& plan, int rank) {
  check_elems("shard", t.tensor, shard_elems(map, plan.fine, rank), t.shard.n);
  check_elems("out", t.tensor, shard_elems(map, plan.coarse, rank), t.out.n);
  check_exact_dtypes(t.codec, t.shard.dtype, t.out.dtype);
  if (is_difference(t.codec) && t.shard.dtype != quant::Dtype::kF32) {
    throw UsageError("collectives", fmt::format("fp32 differences for '{}'", t.codec->spec()),
                     std::string(quant::name(t.shard.dtype)));
  }
}

}  // namespace

GatherBlocks::GatherBlocks(Comm& comm, const CallOptions& options, CallPlan plan,
                           std::span<const GatherTensor> tensors)
    : comm_(comm),
      options_(options),
      plan_(std::move(plan)),
      level_(hop_level(comm.transport.topology(), plan_.fine)) {
  items_.reserve(tensors.size());
  std::size_t written = 0;
  for (const GatherTensor& t : tensors) {
    const ChunkMap map{t.numel, comm.size()};
    check(t, map, plan_, comm.rank());
    items_.push_back({t, map, PieceWire(map, t.codec, t.shard.dtype), is_difference(t.codec)});
    if (items_.back().adds && t.out.dtype != quant::Dtype::kF32) {
      difference_elems_ = std::max(difference_elems_, map.chunk_elems());
    }
    variable_ |= items_.back().wire.framed();
    coded_ |= t.codec != nullptr;
    written += t.out.bytes();
  }
  streams_ = written >= kStreamBytes;
  blocks_.resize(static_cast<std::size_t>(plan_.fine));
  for (const Item& item : items_) {
    const ShardCounts counts(item.map, plan_.fine);
    for (std::size_t r = 0; r < blocks_.size(); ++r) {
      blocks_[r] += item.wire.shard_bytes(counts.full(r), counts.rest(r) != 0);
    }
  }
}

std::size_t GatherBlocks::max_size(int residue) const {
  return static_cast<std::size_t>(blocks_[static_cast<std::size_t>(residue)].total());
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

bool GatherBlocks::all_direct() const {
  const auto filled = std::count_if(items_.begin(), items_.end(),
                                    [](const Item& item) { return item.map.numel > 0; });
  if (filled > 1) return false;
  for (int residue = 0; residue < plan_.fine; ++residue) {
    if (max_size(residue) > 0 && !is_direct(residue)) return false;
  }
  return true;
}

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
  std::size_t at = 0;
  quant::WireBytes booked;
  for (const Item& item : items_) {
    for_pieces(item.map, plan_.fine, own_residue(), [&](Piece p) {
      const auto x = item.tensor.shard.slice(local_offset(item.map, plan_.fine, p.chunk), p.n);
      const auto context =
          codec_context(options_, item.tensor.tensor, p.chunk, p.chunk, level_);
      at += item.wire.encode(x, context, to.subspan(at), booked);
    });
  }
  return at;
}

void GatherBlocks::write(const Item& item, Piece p, std::span<const std::byte> bytes) {
  const auto out = item.tensor.out.slice(local_offset(item.map, plan_.coarse, p.chunk), p.n);
  if (item.adds) {
    add(*item.tensor.codec, bytes, out);
  } else if (item.tensor.codec != nullptr) {
    const auto context =
        codec_context(options_, item.tensor.tensor, comm_.rank(), p.chunk, level_);
    item.tensor.codec->decode_with(bytes, context, out);
  } else {
    copy(out.as_bytes().data(), bytes.data(), bytes.size(), streams_);
  }
}

void GatherBlocks::unpack(int residue, std::span<const std::byte>& rest) {
  const CodecTimer timer(comm_, coded_);
  for (const Item& item : items_) {
    for_pieces(item.map, plan_.fine, residue,
               [&](Piece p) { write(item, p, item.wire.take(p.n, rest)); });
  }
}

void GatherBlocks::unpack_all(std::span<std::span<const std::byte>> blocks) {
  const CodecTimer timer(comm_, coded_);
  const auto block = [&](int chunk) -> std::span<const std::byte>& {
    return blocks[static_cast<std::size_t>(chunk % plan_.fine)];
  };
  for (const Item& item : items_) {
    const std::size_t ahead = item.wire.size(item.map.chunk_elems());
    for_pieces(item.map, plan_.coarse, comm_.rank() % plan_.coarse, [&](Piece p) {
      const auto& next = block(p.chunk + plan_.coarse);
      prefetch(next.first(std::min(ahead, next.size())));
      write(item, p, item.wire.take(p.n, block(p.chunk)));
    });
  }
}

void GatherBlocks::add(const quant::Codec& codec, std::span<const std::byte> wire,
                       quant::MutView out) {
  if (out.dtype == quant::Dtype::kF32) {
    codec.decode_add(wire, {static_cast<float*>(out.data), out.n});
    return;
  }
  if (!difference_) {
    difference_ = {comm_.memory, quant::MemoryKind::kComm, quant::Dtype::kF32,
                   difference_elems_};
  }
  const quant::MutView decoded = difference_.view().slice(0, out.n);
  codec.decode(wire, decoded);
  quant::accumulate(out, decoded);
}

quant::WireBytes GatherBlocks::book(int residue, std::span<const std::byte>& rest) const {
  if (!variable_) return blocks_[static_cast<std::size_t>(residue)];
  quant::WireBytes booked;
  for (const Item& item : items_) {
    for_pieces(item.map, plan_.fine, residue, [&](Piece p) {
      booked += item.wire.actual(p.n, item.wire.take(p.n, rest).size());
    });
  }
  return booked;
}

}  // namespace zeropp::hierarchy::detail
