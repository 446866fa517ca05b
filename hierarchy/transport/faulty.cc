#include "hierarchy/transport/faulty.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "hierarchy/transport/describe.h"
#include "quant/rng.h"

namespace zeropp::hierarchy {
namespace {

constexpr std::byte kBad{0xFF};
constexpr std::size_t kGuard = 61;  // Odd: views lose their alignment to a cache line.

/// An unpredictable word for (seed, rank, sequence, part).
std::uint32_t random_word(const FaultOptions& options, int rank, std::uint64_t sequence,
                          std::uint32_t part) {
  const quant::Philox random({.seed = options.seed,
                              .purpose = quant::Purpose::kTest,
                              .tensor = part,
                              .step = sequence,
                              .sender = static_cast<std::uint32_t>(rank)});
  return random.word(0);
}

/// Indices of operations so that those of one peer keep their order.
template <class Op>
std::vector<std::size_t> shuffled(std::span<const Op> ops,
                                  const std::function<std::uint32_t(int)>& place) {
  std::vector<std::size_t> order(ops.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(place(ops[a].peer), ops[a].peer) <
           std::pair(place(ops[b].peer), ops[b].peer);
  });
  return order;
}

/// Receives in another order than the caller's.
class Shuffled final : public Pending::Impl {
 public:
  Shuffled(Pending inner, const std::vector<std::size_t>& order)
      : inner_(std::move(inner)), place_(order.size()) {
    for (std::size_t i = 0; i < order.size(); ++i) place_[order[i]] = i;
  }
  void wait() override { inner_.wait(); }
  void release() override { inner_.release(); }
  std::span<const std::byte> received(std::size_t i) const override {
    return inner_.received(place_[i]);
  }

 private:
  Pending inner_;
  std::vector<std::size_t> place_;
};

/// Waits after something else, and keeps data that its messages need.
class Delayed final : public Pending::Impl {
 public:
  Delayed(std::vector<std::byte> data, std::function<void()> before)
      : data_(std::move(data)), before_(std::move(before)) {}
  /// Set once the messages that point into `data` are under way.
  void set(Pending inner) { inner_ = std::move(inner); }
  std::span<const std::byte> data() const { return data_; }
  void wait() override {
    if (before_) before_();
    inner_.wait();
  }
  void release() override { inner_.release(); }
  std::span<const std::byte> received(std::size_t i) const override {
    return inner_.received(i);
  }

 private:
  std::vector<std::byte> data_;
  std::function<void()> before_;
  Pending inner_;  ///< Ends before what it sends.
};

/// Copies views to places with bad neighbours and spoils them at the end.
class Poisoned final : public Pending::Impl {
 public:
  Poisoned(Pending inner, std::span<const RecvOp> recvs)
      : inner_(std::move(inner)), recvs_(recvs.begin(), recvs.end()) {}
  void wait() override {
    inner_.wait();
    if (!copies_.empty()) return;
    copies_.resize(recvs_.size());
    for (std::size_t i = 0; i < recvs_.size(); ++i) {
      const auto bytes = inner_.received(i);
      sizes_.push_back(bytes.size());
      if (recvs_[i].into != nullptr) continue;
      copies_[i].assign(bytes.size() + 2 * kGuard, kBad);
      std::copy(bytes.begin(), bytes.end(), copies_[i].begin() + kGuard);
    }
  }
  void release() override {
    wait();
    inner_.release();
    for (auto& copy : copies_) std::fill(copy.begin(), copy.end(), kBad);
  }
  std::span<const std::byte> received(std::size_t i) const override {
    if (recvs_[i].into != nullptr) return {recvs_[i].into, sizes_[i]};
    return std::span(copies_[i]).subspan(kGuard, sizes_[i]);
  }

 private:
  Pending inner_;
  std::vector<RecvOp> recvs_;
  std::vector<std::vector<std::byte>> copies_;
  std::vector<std::size_t> sizes_;
};

/// Nothing is sent, and zeros were received.
class Silent final : public Pending::Impl {
 public:
  explicit Silent(std::span<const RecvOp> recvs) : recvs_(recvs.begin(), recvs.end()) {
    for (const RecvOp& r : recvs_) {
      zeros_.emplace_back(r.into == nullptr && !r.variable ? r.bytes : 0);
      if (r.into != nullptr && !r.variable) std::memset(r.into, 0, r.bytes);
    }
  }
  void wait() override {}
  void release() override {}
  std::span<const std::byte> received(std::size_t i) const override {
    if (recvs_[i].variable) return {};
    if (recvs_[i].into != nullptr) return {recvs_[i].into, recvs_[i].bytes};
    return zeros_[i];
  }

 private:
  std::vector<RecvOp> recvs_;
  std::vector<std::vector<std::byte>> zeros_;
};

std::unique_ptr<Pending::Impl> reordered(Transport& inner, const CallInfo& call,
                                         std::span<const SendOp> sends,
                                         std::span<const RecvOp> recvs, quant::Stream stream,
                                         const std::function<std::uint32_t(int)>& place) {
  std::vector<SendOp> out;
  std::vector<RecvOp> in;
  for (const std::size_t i : shuffled(sends, place)) out.push_back(sends[i]);
  const auto order = shuffled(recvs, place);
  for (const std::size_t i : order) in.push_back(recvs[i]);
  return std::make_unique<Shuffled>(inner.exchange(call, out, in, stream), order);
}

/// With the first non-empty send changed.
std::unique_ptr<Pending::Impl> damaged(Transport& inner, Fault fault, const CallInfo& call,
                                       std::span<const SendOp> sends,
                                       std::span<const RecvOp> recvs, quant::Stream stream) {
  std::vector<SendOp> out(sends.begin(), sends.end());
  SendOp& op =
      *std::find_if(out.begin(), out.end(), [](const SendOp& s) { return !s.data.empty(); });
  std::vector<std::byte> data(op.data.begin(), op.data.end());
  if (fault == Fault::kTruncate) data.pop_back();
  if (fault == Fault::kNan) std::fill(data.begin(), data.end(), kBad);
  auto pending = std::make_unique<Delayed>(std::move(data), nullptr);
  op.data = pending->data();
  if (fault == Fault::kTruncate) op.bytes = {.payload = op.data.size()};
  pending->set(inner.exchange(call, out, recvs, stream));
  return pending;
}

}  // namespace

const char* name(Fault fault) {
  constexpr const char* names[] = {"none",  "delay", "reorder", "poison",
                                   "throw", "drop",  "nan",     "truncate"};
  return names[static_cast<std::size_t>(fault)];
}

Faulty::Faulty(Transport& inner, const FaultOptions& options)
    : Transport(inner.topology(), inner.rank()), inner_(inner), options_(options) {}

bool Faulty::has(Fault fault, std::uint64_t sequence) const {
  return options_.fault == fault && (options_.rank < 0 || options_.rank == rank()) &&
         sequence >= options_.sequence;
}

bool Faulty::strikes(Fault fault, std::uint64_t sequence, std::span<const SendOp> sends) {
  const bool sends_some =
      std::any_of(sends.begin(), sends.end(), [](const SendOp& s) { return !s.data.empty(); });
  if (struck_ || !sends_some || !has(fault, sequence)) return false;
  struck_ = true;
  return true;
}

bool Faulty::lends_views() const {
  // Copies that this transport sends or hands out do not live as long as lent views must.
  const Fault f = options_.fault;
  const bool copies =
      f == Fault::kPoison || f == Fault::kDrop || f == Fault::kNan || f == Fault::kTruncate;
  return !copies && inner_.lends_views();
}

void Faulty::end_lending() {
  if (lends_views()) inner_.end_lending();
}

void Faulty::barrier() {
  if (has(Fault::kDrop, sequence() + 1)) return;
  if (has(Fault::kDelay, sequence() + 1)) delay(sequence(), 2);
  inner_.barrier();
}

void Faulty::delay(std::uint64_t sequence, std::uint32_t part) const {
  const auto most = static_cast<std::uint64_t>(options_.max_delay.count()) + 1;
  std::this_thread::sleep_for(
      std::chrono::microseconds(random_word(options_, rank(), sequence, part) % most));
}

std::unique_ptr<Pending::Impl> Faulty::start(const CallInfo& call, std::uint64_t sequence,
                                             std::span<const SendOp> sends,
                                             std::span<const RecvOp> recvs,
                                             quant::Stream stream) {
  if (strikes(Fault::kThrow, sequence, sends)) {
    throw std::runtime_error(fmt::format("injected: rank {} throws in {}, sequence {}", rank(),
                                         describe(call), sequence));
  }
  if (has(Fault::kDrop, sequence)) return std::make_unique<Silent>(recvs);
  if (has(Fault::kReorder, sequence)) {
    return reordered(inner_, call, sends, recvs, stream, [&](int peer) {
      return random_word(options_, rank(), sequence, static_cast<std::uint32_t>(peer));
    });
  }
  for (const Fault fault : {Fault::kNan, Fault::kTruncate}) {
    if (strikes(fault, sequence, sends)) {
      return damaged(inner_, fault, call, sends, recvs, stream);
    }
  }
  if (has(Fault::kPoison, sequence)) {
    return std::make_unique<Poisoned>(inner_.exchange(call, sends, recvs, stream), recvs);
  }
  std::function<void()> before;
  if (has(Fault::kDelay, sequence)) {
    delay(sequence, 0);
    before = [this, sequence] { delay(sequence, 1); };
  }
  auto pending = std::make_unique<Delayed>(std::vector<std::byte>{}, std::move(before));
  pending->set(inner_.exchange(call, sends, recvs, stream));
  return pending;
}

}  // namespace zeropp::hierarchy
