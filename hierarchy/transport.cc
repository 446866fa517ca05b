#include "hierarchy/transport.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "quant/error.h"

namespace zeropp::hierarchy {
namespace {

void check_peer(const Transport& t, int peer) {
  if (peer >= 0 && peer < t.size() && peer != t.rank()) return;
  throw UsageError(
      "transport",
      fmt::format("a peer in [0, {}) other than rank {} itself", t.size(), t.rank()),
      fmt::format("peer {}", peer));
}

void check_send(const Transport& t, const SendOp& op) {
  check_peer(t, op.peer);
  if (op.bytes.total() != op.data.size()) {
    throw UsageError("transport",
                     fmt::format("a message of {} bytes, as booked", op.bytes.total()),
                     fmt::format("{} bytes for rank {}", op.data.size(), op.peer));
  }
}

/// Books receives of variable size when their sizes are known.
class BookingPending final : public Pending::Impl {
 public:
  BookingPending(std::unique_ptr<Pending::Impl> inner, Ledger& ledger)
      : inner_(std::move(inner)), ledger_(ledger) {}
  void expect(std::size_t receive, const TrafficKey& key) {
    expected_.emplace_back(receive, key);
  }

  void wait() override {
    inner_->wait();
    book();
  }
  void release() override {
    inner_->release();  // Sizes stay known.
    book();
  }
  std::span<const std::byte> received(std::size_t i) const override {
    return inner_->received(i);
  }

 private:
  void book() {
    for (const auto& [receive, key] : expected_) {
      ledger_.received(key, inner_->received(receive).size());
    }
    expected_.clear();
  }

  std::unique_ptr<Pending::Impl> inner_;
  Ledger& ledger_;
  std::vector<std::pair<std::size_t, TrafficKey>> expected_;
};

}  // namespace

Pending& Pending::operator=(Pending&& o) noexcept {
  if (this != &o) {
    Pending old(std::move(*this));  // Releases what was in flight here.
    impl_ = std::move(o.impl_);
  }
  return *this;
}

Pending::~Pending() {
  if (!impl_) return;
  try {
    impl_->release();
  } catch (...) {  // The rank's next call throws it again.
  }
}

void Transport::keep_lent(quant::Buffer memory) { memory.reset(); }

Pending Transport::exchange(const CallInfo& call, std::span<const SendOp> sends,
                            std::span<const RecvOp> recvs, quant::Stream stream) {
  for (const SendOp& op : sends) check_send(*this, op);
  for (const RecvOp& op : recvs) check_peer(*this, op.peer);

  const auto key = [&](int peer) {
    return TrafficKey{.link = topology_.link_class(rank_, peer), .call = call};
  };
  for (const SendOp& op : sends) ledger_.sent(key(op.peer), op.bytes);
  bool variable = false;
  for (const RecvOp& op : recvs) {
    variable |= op.variable;
    if (!op.variable) ledger_.received(key(op.peer), op.bytes);
  }

  auto impl = start(call, ++sequence_, sends, recvs, stream);
  if (!variable) return Pending(std::move(impl));
  auto booking = std::make_unique<BookingPending>(std::move(impl), ledger_);
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    if (recvs[i].variable) booking->expect(i, key(recvs[i].peer));
  }
  return Pending(std::move(booking));
}

}  // namespace zeropp::hierarchy
