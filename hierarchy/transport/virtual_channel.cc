#include "hierarchy/transport/virtual_channel.h"

#include <memory>

namespace zeropp::hierarchy::virtual_ranks {
namespace {

/// *slot, made by whichever rank comes first.
template <class T>
T& make_once(std::atomic<T*>& slot) {
  T* found = slot.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto made = std::make_unique<T>();
  if (slot.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
    return *made.release();
  }
  return *found;
}

}  // namespace

void Channel::post(Message& message) {
  Message* top = stack_.load(std::memory_order_relaxed);
  do {
    message.next = top;
  } while (!stack_.compare_exchange_weak(top, &message, std::memory_order_release,
                                         std::memory_order_relaxed));
  posted_.store(message.ticket + 1, std::memory_order_release);
}

Message& Channel::take(std::uint64_t ticket) {
  Message* newest = stack_.exchange(nullptr, std::memory_order_acquire);
  Message* oldest = nullptr;
  Message** end = newest == nullptr ? last_ : &newest->next;
  while (newest != nullptr) {
    Message* before = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = before;
  }
  if (oldest != nullptr) {
    *last_ = oldest;
    last_ = end;
  }
  Message** at = &first_;
  while ((*at)->ticket != ticket) at = &(*at)->next;
  Message& found = **at;
  *at = found.next;
  if (last_ == &found.next) last_ = at;
  return found;
}

ChannelTable::ChannelTable(int ranks)
    : pages_per_rank_((static_cast<std::size_t>(ranks) + kPage - 1) / kPage),
      pages_(pages_per_rank_ * static_cast<std::size_t>(ranks)) {}

ChannelTable::~ChannelTable() {
  for (std::atomic<Page*>& slot : pages_) {
    Page* page = slot.load(std::memory_order_acquire);
    if (page == nullptr) continue;
    for (std::atomic<Channel*>& channel : *page) delete channel.load(std::memory_order_acquire);
    delete page;
  }
}

Channel& ChannelTable::at(int source, int destination) {
  const auto s = static_cast<std::size_t>(source);
  const auto d = static_cast<std::size_t>(destination);
  Page& page = make_once(pages_[d * pages_per_rank_ + s / kPage]);
  return make_once(page[s % kPage]);
}

}  // namespace zeropp::hierarchy::virtual_ranks
