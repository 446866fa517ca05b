#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "quant/codec.h"

namespace zeropp::hierarchy {

enum class Collective : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kGatherScalars,
  kBarrier,
  kOther,
};
enum class Algorithm : std::uint8_t { kRing, kAllToAll, kHierarchical, kNative };
enum class Phase : std::uint8_t {
  kInit,
  kForward,
  kBackward,
  kStep,
  kEval,
  kCheckpoint,
  kOther
};

std::string_view name(Collective c);
std::string_view name(Algorithm a);  ///< "ring", "all_to_all", "hierarchical", "native".
std::string_view name(Phase p);
Algorithm parse_algorithm(std::string_view text);  ///< UsageError lists the names.

/// What a collective moves, as far as all its ranks must agree on it. It travels with every
/// message, so that ranks whose sizes happen to be equal are told apart.
struct CallContent {
  std::uint64_t elements = 0;               ///< Of all tensors of the call, whole.
  std::uint32_t codecs = 0;                 ///< Hash of tensors and specs; 0: exact.
  std::int32_t coarse = 0, fine = 0;        ///< The call's group.
  quant::Dtype dtype = quant::Dtype::kF32;  ///< On the wire where no codec is.
  std::uint8_t unused[3] = {};
  friend bool operator==(const CallContent&, const CallContent&) = default;
};

/// What a group of messages belongs to.
struct CallInfo {
  Collective collective = Collective::kOther;
  Algorithm algorithm = Algorithm::kHierarchical;
  Phase phase = Phase::kOther;
  quant::Role role = quant::Role::kControl;
  std::uint8_t hop = 0;
  CallContent content{};  ///< Not part of the ledger's key: comparisons leave it out.

  friend bool operator==(const CallInfo& a, const CallInfo& b) { return a.key() == b.key(); }
  friend std::strong_ordering operator<=>(const CallInfo& a, const CallInfo& b) {
    return a.key() <=> b.key();
  }

  /// The fields that are compared, the first one most significant.
  constexpr std::uint64_t key() const {
    const auto byte = [](auto x) {
      return static_cast<std::uint64_t>(static_cast<std::uint8_t>(x));
    };
    return byte(collective) << 32 | byte(algorithm) << 24 | byte(phase) << 16 |
           byte(role) << 8 | byte(hop);
  }
};

struct TrafficKey {
  int link = 0;  ///< Level of the link (Topology::link_class).
  CallInfo call;
  friend auto operator<=>(const TrafficKey&, const TrafficKey&) = default;
};

struct Traffic {
  quant::WireBytes bytes;
  std::uint64_t messages = 0;
  Traffic& operator+=(const Traffic& o) {
    bytes += o.bytes;
    messages += o.messages;
    return *this;
  }
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

struct TrafficEntry {
  TrafficKey key;
  Traffic sent, received;  ///< `received` has no split by content: all under `payload`.
};

/// What one rank sent and received. Filled by Transport::exchange alone.
class Ledger {
 public:
  Ledger() = default;
  /// A ledger that was taken apart; entries sorted by key.
  Ledger(std::vector<TrafficEntry> entries, std::uint64_t collectives)
      : entries_(std::move(entries)), collectives_(collectives) {}
  void sent(const TrafficKey& key, const quant::WireBytes& bytes);
  void received(const TrafficKey& key, std::uint64_t bytes);
  /// One collective began (a call of a public collective, not a hop).
  void collective(const CallInfo& call) {
    (void)call;
    ++collectives_;
  }

  /// Sorted by key.
  const std::vector<TrafficEntry>& entries() const& { return entries_; }
  std::vector<TrafficEntry> entries() && { return std::move(entries_); }  // For range-for.
  std::uint64_t collectives() const { return collectives_; }
  /// Sum over entries on one link class (all roles but control if !with_control).
  Traffic sent_on(int link, bool with_control = false) const;
  void reset();
  /// This minus an earlier snapshot of the same ledger; entries that did not change are absent.
  Ledger since(const Ledger& earlier) const;
  void add(const Ledger& other);

 private:
  TrafficEntry& entry(const TrafficKey& key);
  std::vector<TrafficEntry> entries_;
  std::size_t recent_ = 0;  ///< Index of the entry used last.
  std::uint64_t collectives_ = 0;
};

}  // namespace zeropp::hierarchy
