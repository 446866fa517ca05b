#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hierarchy/ledger.h"

namespace zeropp::hierarchy::virtual_ranks {

using Counter = std::atomic<std::uint64_t>;

/// A posted message. It lives in the sender's pending exchange until `done` of that exchange
/// has counted it: nothing is copied or allocated to send.
struct Message {
  std::span<const std::byte> data;
  CallInfo call;
  std::uint64_t sequence = 0;  ///< Of the sender's exchange.
  std::uint64_t ticket = 0;    ///< Number of this message in its channel.
  Counter* done = nullptr;
  Message* next = nullptr;
};

/// Messages from one rank to another, in order. One producer and one consumer, lock-free.
///
/// The producer pushes onto a stack; the consumer takes the whole stack and reverses it, so no
/// node is looked at by the producer once the consumer may have it. Receives carry tickets, so
/// outstanding exchanges can be waited for in any order and still match first in, first out.
class Channel {
 public:
  // Producer.
  std::uint64_t next_send() { return sends_++; }
  void post(Message& message);

  // Consumer.
  std::uint64_t next_receive() { return receives_++; }
  /// Number of messages posted: message t is here when it is > t.
  const Counter& posted() const { return posted_; }
  /// Removes message `ticket`, which has been posted. Only between enter() and leave().
  Message& take(std::uint64_t ticket);

  /// While the consumer is between enter() and leave() it may read the producer's memory. After
  /// a failure the consumer enters no more, and the producer's memory may go once !busy().
  void enter() { inside_.store(++entered_, std::memory_order_seq_cst); }
  void leave() { inside_.store(--entered_, std::memory_order_release); }
  bool busy() const { return inside_.load(std::memory_order_seq_cst) != 0; }

 private:
  alignas(64) std::atomic<Message*> stack_{nullptr};
  Counter posted_{0};
  std::uint64_t sends_ = 0;

  alignas(64) std::atomic<std::int64_t> inside_{0};
  std::int64_t entered_ = 0;
  Message* first_ = nullptr;  ///< Arrived, in order.
  Message** last_ = &first_;
  std::uint64_t receives_ = 0;
};

/// The channels of N ranks, made when first used: memory follows the pairs that talk.
class ChannelTable {
 public:
  explicit ChannelTable(int ranks);
  ~ChannelTable();
  Channel& at(int source, int destination);

 private:
  static constexpr int kPage = 64;
  using Page = std::array<std::atomic<Channel*>, kPage>;
  std::size_t pages_per_rank_;
  std::vector<std::atomic<Page*>> pages_;
};

}  // namespace zeropp::hierarchy::virtual_ranks
