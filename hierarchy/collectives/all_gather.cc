// All-gather in hops, outermost first (one hop: all-to-all). What a rank holds before a hop is
// one run of bytes: the blocks of its owners, nested by hop in member order. It goes to every
// other member as it is; blocks are unpacked once, at the end, those of the last hop from the
// peers' buffers.

#include <cstring>
#include <utility>

#include "hierarchy/collectives/gather.h"

namespace zeropp::hierarchy {
namespace detail {
namespace {

/// Owners (residues mod chain.back()) of what a rank holds at modulus chain[at], in wire order.
void append_owners(const std::vector<int>& chain, std::size_t at, int residue,
                   std::vector<int>& owners) {
  if (at + 1 == chain.size()) {
    owners.push_back(residue);
    return;
  }
  for (int r = residue; r < chain[at + 1]; r += chain[at]) {
    append_owners(chain, at + 1, r, owners);
  }
}

class HopGather final : public PendingGather::Impl {
 public:
  explicit HopGather(GatherBlocks blocks) : blocks_(std::move(blocks)), call_(plan().call) {
    const int own = blocks_.own_residue();
    if (blocks_.is_direct(own)) {
      held_ = blocks_.own_direct();
    } else {
      buffer_ = scratch(blocks_.max_size(own));
      held_ = buffer_.span().first(blocks_.pack(buffer_.span()));
    }
    at_ = plan().hops();
    if (at_ > 0) post();
  }

  void finish() override {
    if (finished_) return;
    while (at_ > 1) {
      collect();
      post();
    }
    unpack(comm().rank(), held_);
    if (at_ == 1) unpack_last();
    finished_ = true;
  }

 private:
  const CallPlan& plan() const { return blocks_.plan(); }
  Comm& comm() const { return blocks_.comm(); }
  quant::Buffer scratch(std::size_t bytes) const {
    return {comm().memory, quant::MemoryKind::kComm, bytes};
  }

  /// Owners of what `rank` holds before the hop towards chain[at_ - 1].
  std::vector<int> owners(int rank) const {
    const auto at = static_cast<std::size_t>(at_);
    std::vector<int> found;
    append_owners(plan().chain, at, rank % plan().chain[at], found);
    return found;
  }
  std::size_t max_size(int rank) const {
    std::size_t bytes = 0;
    for (const int owner : owners(rank)) bytes += blocks_.max_size(owner);
    return bytes;
  }
  quant::WireBytes booked() const {
    quant::WireBytes bytes;
    auto rest = held_;
    for (const int owner : owners(comm().rank())) bytes += blocks_.book(owner, rest);
    return bytes;
  }

  /// Starts the hop chain[at_] -> chain[at_ - 1].
  void post() {
    const auto at = static_cast<std::size_t>(at_);
    group_ = hop_group(comm().rank(), plan().chain[at - 1], plan().chain[at]);
    const quant::WireBytes bytes = booked();
    Exchange exchange;
    receive_.assign(static_cast<std::size_t>(group_.size), -1);
    for (int j = 0; j < group_.size; ++j) {
      if (j == group_.index) continue;
      const int peer = group_.member(j);
      exchange.send(peer, held_, bytes);
      receive_[static_cast<std::size_t>(j)] =
          exchange.receive(peer, place(peer), max_size(peer), blocks_.variable());
    }
    pending_ = exchange.start(comm(), call_);
    ++call_.hop;
  }

  /// A direct block of the last hop goes straight to its place in the output.
  std::byte* place(int peer) const {
    const int owner = peer % plan().fine;
    const bool straight = at_ == 1 && plan().hops() == 1 && blocks_.is_direct(owner);
    return straight ? blocks_.direct_place(owner).data() : nullptr;
  }

  /// Ends a hop that is not the last: all that arrived, in member order, is held from now on.
  void collect() {
    pending_.wait();
    std::size_t total = held_.size();
    for (const int index : receive_) total += received(pending_, index).size();
    quant::Buffer next = scratch(total);
    std::size_t at = 0;
    for (int j = 0; j < group_.size; ++j) {
      const auto part =
          j == group_.index ? held_ : received(pending_, receive_[static_cast<std::size_t>(j)]);
      if (!part.empty()) std::memcpy(next.data() + at, part.data(), part.size());
      at += part.size();
    }
    pending_.release();
    buffer_ = std::move(next);
    held_ = buffer_.span();
    --at_;
  }

  void unpack(int rank, std::span<const std::byte> bytes) {
    for (const int owner : owners(rank)) blocks_.unpack(owner, bytes);
  }

  void unpack_last() {
    pending_.wait();
    for (int j = 0; j < group_.size; ++j) {
      const int peer = group_.member(j);
      if (j == group_.index || place(peer) != nullptr) continue;
      unpack(peer, received(pending_, receive_[static_cast<std::size_t>(j)]));
    }
    pending_.release();
  }

  GatherBlocks blocks_;
  CallInfo call_;
  int at_ = 0;  ///< What is held is the shard at modulus chain[at_].
  bool finished_ = false;
  HopGroup group_;
  std::vector<int> receive_;  ///< By member: index of its receive, -1 if none.
  quant::Buffer buffer_;
  std::span<const std::byte> held_;
  Pending pending_;  ///< Last: released before the buffer that it lends.
};

}  // namespace

std::unique_ptr<PendingGather::Impl> begin_hop_gather(GatherBlocks blocks) {
  return std::make_unique<HopGather>(std::move(blocks));
}

std::unique_ptr<PendingGather::Impl> begin_gather(Comm& comm, const CallOptions& options,
                                                  CallPlan plan,
                                                  std::span<const GatherTensor> tensors) {
  GatherBlocks blocks(comm, options, std::move(plan), tensors);
  const bool ring = options.algorithm == Algorithm::kRing && blocks.plan().hops() > 0;
  return ring ? begin_ring_gather(std::move(blocks)) : begin_hop_gather(std::move(blocks));
}

}  // namespace detail

PendingGather::PendingGather() = default;
PendingGather::PendingGather(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PendingGather::PendingGather(PendingGather&&) noexcept = default;
PendingGather& PendingGather::operator=(PendingGather&&) noexcept = default;
PendingGather::~PendingGather() = default;

void PendingGather::finish() {
  if (impl_) impl_->finish();
}

PendingGather start_all_gather(Comm& comm, const CallOptions& options,
                               std::span<const GatherTensor> tensors) {
  detail::CallPlan plan = detail::plan_call(comm, options, Collective::kAllGather);
  comm.transport.ledger().collective(plan.call);
  if (!tensors.empty()) {
    // Behind a codec a holder's dtype is its own affair.
    const bool coded = tensors[0].codec != nullptr;
    detail::ContentHash hash(plan, coded ? quant::Dtype::kF32 : tensors[0].shard.dtype);
    for (const GatherTensor& t : tensors) hash.add(t.tensor, t.numel, t.codec);
    plan.call.content = hash.content();
  }
  return PendingGather(detail::begin_gather(comm, options, std::move(plan), tensors));
}

}  // namespace zeropp::hierarchy
