#include "hierarchy/transport/virtual_pending.h"

#include <fmt/format.h>

#include <cstring>
#include <exception>

#include "hierarchy/transport/describe.h"
#include "quant/error.h"

namespace zeropp::hierarchy::virtual_ranks {

PendingExchange::PendingExchange(Endpoint& endpoint, const CallInfo& call,
                                 std::uint64_t sequence, std::span<const SendOp> sends,
                                 std::span<const RecvOp> recvs)
    : endpoint_(endpoint),
      call_(call),
      sequence_(sequence),
      sends_(sends.size()),
      receives_(recvs.size()),
      unwinding_at_birth_(std::uncaught_exceptions()) {
  ChannelTable& channels = endpoint.world_.channels();
  for (std::size_t i = 0; i < sends.size(); ++i) {
    sends_[i].channel = &channels.at(endpoint.rank(), sends[i].peer);
    sends_[i].message = {.data = sends[i].data,
                         .call = call,
                         .sequence = sequence,
                         .ticket = 0,
                         .done = &done_,
                         .next = nullptr};
  }
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    receives_[i].channel = &channels.at(recvs[i].peer, endpoint.rank());
    receives_[i].op = recvs[i];
  }
  endpoint.pending_.push_back(this);
}

PendingExchange::~PendingExchange() {
  try {
    release();
  } catch (...) {  // The rank's next call throws it again.
  }
  std::erase(endpoint_.pending_, this);
}

void PendingExchange::post() {
  for (Receive& r : receives_) r.ticket = r.channel->next_receive();
  for (Send& s : sends_) {
    s.message.ticket = s.channel->next_send();
    s.channel->post(s.message);
  }
}

void PendingExchange::wait() {
  if (abandoned_) endpoint_.throw_failed(wait_text(nullptr));
  for (; arrived_ < receives_.size(); ++arrived_) receive(receives_[arrived_]);
}

void PendingExchange::release() {
  if (released_ || abandoned_) return;
  wait();
  give_back();
  wait_or_throw(done_, sends_.size(), nullptr);
  released_ = true;
}

void PendingExchange::receive(Receive& r) {
  wait_or_throw(r.channel->posted(), r.ticket + 1, &r);
  r.channel->enter();
  if (endpoint_.world_.failed()) {
    r.channel->leave();
    abandon();
    endpoint_.throw_failed(wait_text(&r));
  }
  const Message& message = r.channel->take(r.ticket);
  if (!matches(r, message)) {
    const std::string text = mismatch_text(r, message);
    message.done->fetch_add(1, std::memory_order_release);
    r.channel->leave();
    endpoint_.world_.fail(endpoint_.rank(), endpoint_.where(), RankError{.text = text});
    abandon();
    throw TransportError(text);
  }
  if (r.op.into == nullptr) {
    r.data = message.data;
    r.lent = message.done;
    return;
  }
  if (!message.data.empty()) {
    std::memcpy(r.op.into, message.data.data(), message.data.size());
  }
  r.data = {r.op.into, message.data.size()};
  message.done->fetch_add(1, std::memory_order_release);  // `message` may be gone now.
  r.channel->leave();
}

bool PendingExchange::matches(const Receive& r, const Message& message) const {
  const std::size_t size = message.data.size();
  const bool fits = r.op.variable ? size <= r.op.bytes : size == r.op.bytes;
  return fits && message.call == call_ && message.call.content == call_.content;
}

std::string PendingExchange::mismatch_text(const Receive& r, const Message& message) const {
  return fmt::format(
      "mismatch: rank {} expects {}{} bytes of {}, sequence {}, from rank {}, which sent {} "
      "bytes "
      "of {}, sequence {}{}",
      endpoint_.rank(), r.op.variable ? "up to " : "", r.op.bytes, describe(call_), sequence_,
      r.op.peer, message.data.size(), describe(message.call), message.sequence,
      describe_difference(call_.content, message.call.content));
}

void PendingExchange::give_back() {
  for (Receive& r : receives_) {
    if (r.lent == nullptr) continue;
    r.lent->fetch_add(1, std::memory_order_release);
    r.lent = nullptr;
    r.channel->leave();
  }
}

void PendingExchange::abandon() {
  for (PendingExchange* p : endpoint_.pending_) p->give_back();
  for (Send& s : sends_) {
    while (s.channel->busy()) endpoint_.waiter_.pause();
  }
  abandoned_ = true;
}

void PendingExchange::wait_or_throw(const Counter& word, std::uint64_t target,
                                    const Receive* receive) {
  if (word.load(std::memory_order_acquire) >= target) return;
  World& world = endpoint_.world_;
  if (std::uncaught_exceptions() > unwinding_at_birth_) {
    world.fail(endpoint_.rank(), endpoint_.where(), std::nullopt);
  }
  if (endpoint_.wait_for(word, target)) return;
  const std::string text = wait_text(receive);
  abandon();
  endpoint_.throw_failed(text);
}

std::string PendingExchange::wait_text(const Receive* r) const {
  if (r == nullptr) {
    return fmt::format("waits for its sends of {}, sequence {}, to be received",
                       describe(call_), sequence_);
  }
  return fmt::format("waits for {} bytes of {}, sequence {}, from rank {}", r->op.bytes,
                     describe(call_), sequence_, r->op.peer);
}

}  // namespace zeropp::hierarchy::virtual_ranks
