// Ring all-gather: in step s a rank passes the block of the owner s places before it to the
// next rank. Direct blocks travel from output to output, others through three rotating slots:
// one being sent, one being received, one whose send may still be read by the next rank.

#include <algorithm>
#include <array>
#include <utility>

#include "hierarchy/collectives/gather.h"

namespace zeropp::hierarchy::detail {
namespace {

class RingGather final : public PendingGather::Impl {
 public:
  explicit RingGather(GatherBlocks blocks)
      : blocks_(std::move(blocks)),
        call_(blocks_.plan().call),
        group_(hop_group(comm().rank(), blocks_.plan().coarse, blocks_.plan().fine)) {
    bool slots = false;
    std::size_t largest = 0;
    for (int j = 0; j < group_.size; ++j) {
      const std::size_t size = blocks_.max_size(residue(j));
      largest = std::max(largest, size);
      slots |= size > 0 && !blocks_.is_direct(residue(j));
    }
    if (slots) {
      for (auto& slot : slots_) slot = {comm().memory, quant::MemoryKind::kComm, largest};
    }
    const int own = blocks_.own_residue();
    own_ = blocks_.is_direct(own) ? blocks_.own_direct()
                                  : std::span<const std::byte>(
                                        slots_[0].span().first(blocks_.pack(slots_[0].span())));
    post(0, own_);
  }

  void finish() override {
    if (finished_) return;
    unpack(group_.index, own_);
    for (int step = 0; step + 1 < group_.size; ++step) {
      Pending& pending = pendings_[static_cast<std::size_t>(step % 2)];
      pending.wait();
      const auto block = received(pending, receive_);
      // The slot that the next step receives into was sent in the step before this one.
      pendings_[static_cast<std::size_t>((step + 1) % 2)].release();
      if (step + 2 < group_.size) post(step + 1, block);
      const int owner = owner_index(step + 1);
      if (!blocks_.is_direct(residue(owner))) unpack(owner, block);
    }
    for (Pending& pending : pendings_) pending.release();
    finished_ = true;
  }

 private:
  Comm& comm() const { return blocks_.comm(); }
  int residue(int index) const { return group_.member(index) % blocks_.plan().fine; }
  /// Owner of the block that this rank sends in a step.
  int owner_index(int step) const { return (group_.index - step + group_.size) % group_.size; }

  void post(int step, std::span<const std::byte> block) {
    const int next = group_.member((group_.index + 1) % group_.size);
    const int previous = group_.member(owner_index(1));
    const int coming = residue(owner_index(step + 1));
    auto rest = block;
    Exchange exchange;
    exchange.send(next, block, blocks_.book(residue(owner_index(step)), rest));
    std::byte* into = blocks_.is_direct(coming)
                          ? blocks_.direct_place(coming).data()
                          : slots_[static_cast<std::size_t>((step + 1) % 3)].data();
    receive_ = exchange.receive(previous, into, blocks_.max_size(coming), blocks_.variable());
    pendings_[static_cast<std::size_t>(step % 2)] = exchange.start(comm(), call_);
  }

  void unpack(int index, std::span<const std::byte> block) {
    blocks_.unpack(residue(index), block);
  }

  GatherBlocks blocks_;
  CallInfo call_;
  HopGroup group_;
  bool finished_ = false;
  int receive_ = -1;  ///< Index of the current step's receive.
  std::array<quant::Buffer, 3> slots_;
  std::span<const std::byte> own_;
  std::array<Pending, 2> pendings_;  ///< Last: released before the slots that they lend.
};

}  // namespace

std::unique_ptr<PendingGather::Impl> begin_ring_gather(GatherBlocks blocks) {
  return std::make_unique<RingGather>(std::move(blocks));
}

}  // namespace zeropp::hierarchy::detail
