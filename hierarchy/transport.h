#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "hierarchy/ledger.h"
#include "hierarchy/topology.h"
#include "quant/codec.h"
#include "quant/device.h"
#include "quant/memory.h"

namespace zeropp::hierarchy {

/// One message to a peer. `data` must stay unchanged until Pending::release() returns.
struct SendOp {
  int peer = 0;
  std::span<const std::byte> data;
  quant::WireBytes bytes;  ///< What the data is; total() == data.size().
};

/// One message from a peer. `into` null asks for a view: the virtual transport lends the
/// sender's span until release(), others receive into a buffer of their own.
/// Fixed-size messages must have exactly `bytes`; `variable` takes up to that many.
struct RecvOp {
  int peer = 0;
  std::byte* into = nullptr;
  std::size_t bytes = 0;
  bool variable = false;
};

/// A group of messages in flight. Call wait() (receives are here), then release() (views are
/// given back, own sends may be overwritten). Both throw TransportError; both are idempotent.
/// The destructor releases without throwing.
class Pending {
 public:
  class Impl {
   public:
    virtual ~Impl() = default;
    virtual void wait() = 0;
    virtual void release() = 0;
    virtual std::span<const std::byte> received(std::size_t i) const = 0;
  };
  Pending() = default;
  explicit Pending(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Pending(Pending&&) = default;
  Pending& operator=(Pending&& o) noexcept;
  ~Pending();
  void wait() {
    if (impl_) impl_->wait();
  }
  void release() {
    if (impl_) impl_->release();
  }
  /// The i-th receive's bytes; valid between wait() and release() (for ever if `into` was
  /// given).
  std::span<const std::byte> received(std::size_t i) const { return impl_->received(i); }

 private:
  std::unique_ptr<Impl> impl_;
};

/// One rank's end of the network. One data verb, as ncclGroupStart/Send/Recv/GroupEnd: messages
/// between two ranks match in the order in which both sides issue them. Messages to oneself are
/// not allowed: own contributions never travel.
class Transport {
 public:
  explicit Transport(const Topology& topology, int rank) : topology_(topology), rank_(rank) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return topology_.ranks(); }
  const Topology& topology() const { return topology_; }
  const Ledger& ledger() const { return ledger_; }
  Ledger& ledger() { return ledger_; }

  /// Starts the messages and books them: nothing can be sent uncounted. Calls are numbered; the
  /// virtual transport compares (call, bytes) of both sides of every message and throws
  /// TransportError naming both ranks, collectives, sequence numbers and sizes if they differ.
  Pending exchange(const CallInfo& call, std::span<const SendOp> sends,
                   std::span<const RecvOp> recvs, quant::Stream stream = {});
  /// True if views are the senders' own memory: what a peer lends may then be lent on to the
  /// next one, if its first sender keeps it until all ranks have called end_lending().
  virtual bool lends_views() const { return false; }
  virtual void end_lending() {}
  /// After a failure: memory that peers of peers may still read, which must outlive all ranks.
  virtual void keep_lent(quant::Buffer memory);

  /// Waits for every rank.
  virtual void barrier() = 0;
  std::uint64_t sequence() const { return sequence_; }

  /// Seconds this rank spent switched out inside wait() (other ranks of its worker ran, or
  /// nothing was ready). Monotonic.
  virtual double waited_seconds() const { return 0; }

 protected:
  virtual std::unique_ptr<Pending::Impl> start(const CallInfo& call, std::uint64_t sequence,
                                               std::span<const SendOp> sends,
                                               std::span<const RecvOp> recvs,
                                               quant::Stream stream) = 0;

 private:
  const Topology topology_;
  int rank_;
  std::uint64_t sequence_ = 0;
  Ledger ledger_;
};

}  // namespace zeropp::hierarchy
