#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hierarchy/transport.h"
#include "hierarchy/transport/virtual_world.h"

namespace zeropp::hierarchy::virtual_ranks {

class PendingExchange;

/// One virtual rank's transport.
class Endpoint final : public Transport {
 public:
  Endpoint(World& world, int rank, Waiter& waiter);
  ~Endpoint() override;

  bool lends_views() const override { return true; }
  void end_lending() override;
  void keep_lent(quant::Buffer memory) override { world_.keep(std::move(memory)); }
  void barrier() override;
  double waited_seconds() const override { return waited_seconds_; }

  /// Runs the rank; its error, if any, goes to the world.
  void run(const std::function<void(Transport&)>& body) noexcept;
  bool ended() const { return ended_; }
  /// "in all_gather hop 0, sequence 3", or "before its first exchange".
  std::string where() const;

 protected:
  std::unique_ptr<Pending::Impl> start(const CallInfo& call, std::uint64_t sequence,
                                       std::span<const SendOp> sends,
                                       std::span<const RecvOp> recvs,
                                       quant::Stream stream) override;

 private:
  friend class PendingExchange;

  /// False if the world failed first.
  [[gnu::always_inline]] bool wait_for(const Counter& word, std::uint64_t target) {
    if (word.load(std::memory_order_acquire) >= target) return true;
    waited_seconds_ += waiter_.wait(word, target, true);
    return word.load(std::memory_order_acquire) >= target;
  }
  /// On a timeout `waits` tells what the rank was waiting for.
  [[noreturn]] void throw_failed(const std::string& waits);

  World& world_;
  Waiter& waiter_;
  CallInfo last_call_;
  std::uint64_t barriers_ = 0;
  double waited_seconds_ = 0;
  bool ended_ = false;
  std::vector<PendingExchange*> pending_;
};

}  // namespace zeropp::hierarchy::virtual_ranks
