#include "hierarchy/transport/virtual_endpoint.h"

#include <fmt/format.h>

#include "hierarchy/transport/virtual_pending.h"
#include "quant/error.h"

namespace zeropp::hierarchy::virtual_ranks {

Endpoint::Endpoint(World& world, int rank, Waiter& waiter)
    : Transport(world.topology(), rank), world_(world), waiter_(waiter) {}

Endpoint::~Endpoint() = default;

std::string Endpoint::where() const {
  if (sequence() == 0 && barriers_ == 0) return "before its first exchange";
  return fmt::format("in {} hop {}, sequence {}", name(last_call_.collective), last_call_.hop,
                     sequence());
}

void Endpoint::run(const std::function<void(Transport&)>& body) noexcept {
  const auto fail = [this](bool usage, const char* text) {
    world_.fail(rank(), where(), RankError{.usage = usage, .text = text});
  };
  try {
    if (!world_.failed()) body(*this);
  } catch (const UsageError& e) {
    fail(true, e.what());
  } catch (const std::exception& e) {
    fail(false, e.what());
  } catch (...) {
    fail(false, "an exception that is no std::exception");
  }
  ended_ = true;
}

std::unique_ptr<Pending::Impl> Endpoint::start(const CallInfo& call, std::uint64_t sequence,
                                               std::span<const SendOp> sends,
                                               std::span<const RecvOp> recvs,
                                               quant::Stream /*stream*/) {
  last_call_ = call;
  if (world_.options().on_exchange) world_.options().on_exchange(rank(), call, sequence);
  if (world_.failed()) world_.throw_failed(fmt::format("rank {} {}", rank(), where()));
  auto pending = std::make_unique<PendingExchange>(*this, call, sequence, sends, recvs);
  pending->post();
  return pending;
}

void Endpoint::barrier() {
  last_call_ = CallInfo{.collective = Collective::kBarrier};
  end_lending();
}

void Endpoint::end_lending() {
  if (world_.failed()) world_.throw_failed(fmt::format("rank {} {}", rank(), where()));
  ++barriers_;
  waiter_.arrive();
  if (!wait_for(world_.barrier_generation(), barriers_)) {
    throw_failed(fmt::format("waits in barrier {}, after sequence {}", barriers_, sequence()));
  }
}

void Endpoint::throw_failed(const std::string& waits) {
  world_.report_wait(rank(), waits);
  world_.throw_failed(fmt::format("rank {} {}", rank(), where()));
}

}  // namespace zeropp::hierarchy::virtual_ranks
