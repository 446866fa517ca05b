#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hierarchy/transport.h"

namespace zeropp::hierarchy {

/// Harmless faults may change no bit and no count; of the others every rank must get an error
/// (kNan: a result that is no number, or an error).
enum class Fault : std::uint8_t {
  kNone,
  kDelay,     ///< Harmless. Sleeps before exchanges start and before they are waited for.
  kReorder,   ///< Harmless. Messages of an exchange to and from different peers change places.
  kPoison,    ///< Harmless. Bytes around and, after release(), in the place of views are 0xFF.
  kThrow,     ///< std::runtime_error naming rank, call and sequence.
  kDrop,      ///< The rank goes on alone: it sends nothing, and gets zeros without waiting.
  kNan,       ///< All bytes of one message are 0xFF, a NaN in each dtype and as a scale.
  kTruncate,  ///< The last byte of one message is missing.
};
const char* name(Fault fault);

struct FaultOptions {
  Fault fault = Fault::kNone;
  int rank = -1;  ///< Who has it; -1: all ranks.
  /// First exchange that has it. kThrow, kNan and kTruncate happen once: there, or at the first
  /// later exchange of the rank that sends something.
  std::uint64_t sequence = 1;
  std::uint64_t seed = 0;  ///< Delays and orders are keyed by it, rank and sequence.
  std::chrono::microseconds max_delay{500};
};

/// A transport that breaks on purpose, around any other; for tests. `inner` must outlive it and
/// carries the messages; both ledgers are kept, this one with what the rank meant to send.
class Faulty final : public Transport {
 public:
  Faulty(Transport& inner, const FaultOptions& options);

  bool lends_views() const override;
  void end_lending() override;
  void keep_lent(quant::Buffer memory) override { inner_.keep_lent(std::move(memory)); }
  void barrier() override;
  double waited_seconds() const override { return inner_.waited_seconds(); }

 protected:
  std::unique_ptr<Pending::Impl> start(const CallInfo& call, std::uint64_t sequence,
                                       std::span<const SendOp> sends,
                                       std::span<const RecvOp> recvs,
                                       quant::Stream stream) override;

 private:
  bool has(Fault fault, std::uint64_t sequence) const;
  /// The fault that happens once happens now.
  bool strikes(Fault fault, std::uint64_t sequence, std::span<const SendOp> sends);
  void delay(std::uint64_t sequence, std::uint32_t part) const;

  Transport& inner_;
  FaultOptions options_;
  bool struck_ = false;
};

}  // namespace zeropp::hierarchy
