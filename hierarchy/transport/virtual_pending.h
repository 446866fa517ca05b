#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "hierarchy/transport/virtual_channel.h"
#include "hierarchy/transport/virtual_endpoint.h"

namespace zeropp::hierarchy::virtual_ranks {

/// Messages of one exchange. Sends are posted at once; receives are copied or borrowed in
/// wait(); release() gives borrowed spans back first and then waits for the own ones, so that
/// two ranks that borrow from each other never wait in a circle.
///
/// After a failure views die with the first Pending that is released or destroyed on the rank:
/// all of them are given back then, whatever the order of destruction.
/// A Pending that an exception destroys while its messages are in flight fails the world, since
/// this rank cannot keep its word to its peers.
class PendingExchange final : public Pending::Impl {
 public:
  PendingExchange(Endpoint& endpoint, const CallInfo& call, std::uint64_t sequence,
                  std::span<const SendOp> sends, std::span<const RecvOp> recvs);
  ~PendingExchange() override;
  void post();

  void wait() override;
  void release() override;
  std::span<const std::byte> received(std::size_t i) const override {
    return receives_[i].data;
  }

 private:
  struct Send {
    Channel* channel = nullptr;
    Message message;
  };
  struct Receive {
    Channel* channel = nullptr;
    RecvOp op;
    std::uint64_t ticket = 0;
    std::span<const std::byte> data;
    Counter* lent = nullptr;  ///< Counts a borrowed span's return at the sender; null: none.
  };

  void receive(Receive& receive);
  bool matches(const Receive& receive, const Message& message) const;
  std::string mismatch_text(const Receive& receive, const Message& message) const;
  void give_back();
  /// Gives up after a failure: nothing of this rank is lent or read afterwards.
  void abandon();
  void wait_or_throw(const Counter& word, std::uint64_t target, const Receive* receive);
  std::string wait_text(const Receive* receive) const;

  Endpoint& endpoint_;
  CallInfo call_;
  std::uint64_t sequence_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::size_t arrived_ = 0;  ///< Receives before it are done.
  Counter done_{0};          ///< Sends that were taken or given back.
  int unwinding_at_birth_;
  bool released_ = false;
  bool abandoned_ = false;
};

}  // namespace zeropp::hierarchy::virtual_ranks
