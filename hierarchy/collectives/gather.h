#pragma once

#include <memory>
#include <span>
#include <vector>

#include "hierarchy/collectives/common.h"

namespace zeropp::hierarchy {

/// A gather that was started; one subclass an algorithm.
class PendingGather::Impl {
 public:
  virtual ~Impl() = default;
  virtual void finish() = 0;
};

namespace detail {

/// A block is what one owner (a residue mod `fine`) contributes to a gather: its pieces of all
/// tensors, tensor by tensor, chunks ascending. This packs the own block and unpacks anyone's.
class GatherBlocks {
 public:
  GatherBlocks(Comm& comm, const CallOptions& options, CallPlan plan,
               std::span<const GatherTensor> tensors);

  Comm& comm() const { return comm_; }
  const CallPlan& plan() const { return plan_; }
  int own_residue() const { return comm_.rank() % plan_.fine; }
  bool variable() const { return variable_; }
  /// Bytes of an owner's block; an upper bound if variable().
  std::size_t max_size(int residue) const;
  /// A block that is one run of exact elements needs no packing and no unpacking.
  bool is_direct(int residue) const;
  /// The same of every owner's block that is not empty: equal on all ranks.
  bool all_direct() const;
  std::span<const std::byte> own_direct() const;
  /// Where a direct block belongs in the output.
  std::span<std::byte> direct_place(int residue) const;

  /// Encodes the own block into `to`; returns its bytes.
  std::size_t pack(std::span<std::byte> to);
  /// Copies or decodes the block at the front of `rest` into the outputs and advances past it.
  void unpack(int residue, std::span<const std::byte>& rest);
  /// Unpacks all blocks, by residue, into one output after the other: long runs of writes. The
  /// spans are used up.
  void unpack_all(std::span<std::span<const std::byte>> blocks);
  /// Books the block at the front of `rest` and, if variable(), advances past it.
  quant::WireBytes book(int residue, std::span<const std::byte>& rest) const;

 private:
  struct Item {
    GatherTensor tensor;
    ChunkMap map;
    PieceWire wire;
    bool adds = false;  ///< What is decoded is added to `out`.
  };
  struct Single {
    const Item* item = nullptr;
    Piece piece;
  };
  void write(const Item& item, Piece p, std::span<const std::byte> bytes);
  /// The block's only piece if it is exact, else no item.
  Single single(int residue) const;
  void add(const quant::Codec& codec, std::span<const std::byte> wire, quant::MutView out);

  Comm& comm_;
  CallOptions options_;
  CallPlan plan_;
  int level_;  ///< Of the codecs' contexts.
  std::vector<Item> items_;
  std::vector<quant::WireBytes> blocks_;  ///< By residue; upper bounds if variable_.
  bool variable_ = false;
  bool coded_ = false;
  bool streams_ = false;
  std::size_t difference_elems_ = 0;  ///< Of the largest decoded difference of 16-bit elements.
  quant::Tensor difference_;          ///< It, from the first one on.
};

/// The front of all gathers: `plan.call` says what they are booked as.
std::unique_ptr<PendingGather::Impl> begin_gather(Comm& comm, const CallOptions& options,
                                                  CallPlan plan,
                                                  std::span<const GatherTensor> tensors);
std::unique_ptr<PendingGather::Impl> begin_ring_gather(GatherBlocks blocks);
std::unique_ptr<PendingGather::Impl> begin_hop_gather(GatherBlocks blocks);

}  // namespace detail
}  // namespace zeropp::hierarchy
