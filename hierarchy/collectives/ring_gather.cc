// Ring all-gather: in step s a rank passes the block of the owner s places before it to the
// next rank.
//
// Blocks that are all direct travel from output to output. Others stay in their owners' buffers
// where views are the senders' own memory: every rank lends on what it was lent, and unpacks
// all of them in the outputs' order when it knows where they are. Elsewhere they travel through
// three rotating slots: one being sent, one being received, one whose send may still be read by
// the next rank.

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "hierarchy/collectives/gather.h"

namespace zeropp::hierarchy::detail {
namespace {

class RingGather final : public PendingGather::Impl {
 public:
  explicit RingGather(GatherBlocks blocks)
      : blocks_(std::move(blocks)),
        call_(blocks_.plan().call),
        group_(hop_group(comm().rank(), blocks_.plan().coarse, blocks_.plan().fine)),
        lends_(comm().transport.lends_views() && !blocks_.all_direct()) {
    make_slots();
    own_ = packs(own_residue()) ? slots_[0].span().first(blocks_.pack(slots_[0].span()))
                                : blocks_.own_direct();
    post(0, own_);
  }

  ~RingGather() override {
    for (Pending& p : pendings_) p = {};
    if (!finished_ && lends_) comm().transport.keep_lent(std::move(slots_[0]));
  }

  void finish() override {
    if (finished_) return;
    keep(group_.index, own_);
    for (int step = 0; step + 1 < group_.size; ++step) {
      pending(step).wait();
      const auto block = received(pending(step), receive_);
      // The slot that the next step receives into was sent in the step before this one.
      pending(step + 1).release();
      if (step + 2 < group_.size) post(step + 1, block);
      const int owner = owner_index(step + 1);
      if (packs(residue(owner))) keep(owner, block);
    }
    if (lends_) blocks_.unpack_all(lent_);
    for (Pending& p : pendings_) p.release();
    if (lends_) comm().transport.end_lending();
    finished_ = true;
  }

 private:
  Comm& comm() const { return blocks_.comm(); }
  int own_residue() const { return blocks_.own_residue(); }
  int residue(int index) const { return group_.member(index) % blocks_.plan().fine; }
  /// Owner of the block that this rank sends in a step.
  int owner_index(int step) const { return (group_.index - step + group_.size) % group_.size; }
  Pending& pending(int step) { return pendings_[static_cast<std::size_t>(step % 2)]; }
  /// True if a block is packed by its owner and unpacked by the others. What is lent on must be
  /// memory that a failure can keep alive.
  bool packs(int residue) const { return lends_ || !blocks_.is_direct(residue); }

  void make_slots() {
    std::size_t largest = 0;
    for (int j = 0; j < group_.size; ++j) {
      if (packs(residue(j))) largest = std::max(largest, blocks_.max_size(residue(j)));
    }
    if (lends_) {
      lent_.resize(static_cast<std::size_t>(blocks_.plan().fine));
      slots_[0] = {comm().memory, quant::MemoryKind::kComm, blocks_.max_size(own_residue())};
    } else if (largest > 0) {
      for (auto& slot : slots_) slot = {comm().memory, quant::MemoryKind::kComm, largest};
    }
  }

  void post(int step, std::span<const std::byte> block) {
    const int next = group_.member((group_.index + 1) % group_.size);
    const int previous = group_.member(owner_index(1));
    const int coming = residue(owner_index(step + 1));
    auto rest = block;
    Exchange exchange;
    exchange.send(next, block, blocks_.book(residue(owner_index(step)), rest));
    std::byte* into = nullptr;
    if (!lends_) {
      into = packs(coming) ? slots_[static_cast<std::size_t>((step + 1) % 3)].data()
                           : blocks_.direct_place(coming).data();
    }
    receive_ = exchange.receive(previous, into, blocks_.max_size(coming), blocks_.variable());
    pending(step) = exchange.start(comm(), call_);
  }

  void keep(int index, std::span<const std::byte> block) {
    if (lends_) {
      lent_[static_cast<std::size_t>(residue(index))] = block;
    } else {
      blocks_.unpack(residue(index), block);
    }
  }

  GatherBlocks blocks_;
  CallInfo call_;
  HopGroup group_;
  bool lends_;
  bool finished_ = false;
  int receive_ = -1;  ///< Index of the current step's receive.
  std::array<quant::Buffer, 3> slots_;
  std::span<const std::byte> own_;
  std::vector<std::span<const std::byte>> lent_;  ///< By residue, if lends_.
  std::array<Pending, 2> pendings_;               ///< Released before the slots that they lend.
};

}  // namespace

std::unique_ptr<PendingGather::Impl> begin_ring_gather(GatherBlocks blocks) {
  return std::make_unique<RingGather>(std::move(blocks));
}

}  // namespace zeropp::hierarchy::detail
