#include "hierarchy/ledger.h"

#include <algorithm>
#include <array>
#include <string>

#include "quant/error.h"

namespace zeropp::hierarchy {
namespace {

constexpr std::array<std::string_view, 8> kCollectives = {
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all",
    "broadcast",  "gather_scalars", "barrier",    "other"};
constexpr std::array<std::string_view, 4> kAlgorithms = {"ring", "all_to_all", "hierarchical",
                                                         "native"};
constexpr std::array<std::string_view, 7> kPhases = {"init", "forward",    "backward", "step",
                                                     "eval", "checkpoint", "other"};

Traffic minus(const Traffic& a, const Traffic& b) {
  return {.bytes = {.payload = a.bytes.payload - b.bytes.payload,
                    .scale = a.bytes.scale - b.bytes.scale,
                    .padding = a.bytes.padding - b.bytes.padding,
                    .exact = a.bytes.exact - b.bytes.exact},
          .messages = a.messages - b.messages};
}

bool before(const TrafficEntry& entry, const TrafficKey& key) { return entry.key < key; }

}  // namespace

std::string_view name(Collective c) { return kCollectives.at(static_cast<std::size_t>(c)); }
std::string_view name(Algorithm a) { return kAlgorithms.at(static_cast<std::size_t>(a)); }
std::string_view name(Phase p) { return kPhases.at(static_cast<std::size_t>(p)); }

Algorithm parse_algorithm(std::string_view text) {
  std::string known;
  for (std::size_t i = 0; i < kAlgorithms.size(); ++i) {
    if (kAlgorithms[i] == text) return static_cast<Algorithm>(i);
    known += (i == 0 ? "" : ", ") + std::string(kAlgorithms[i]);
  }
  throw UsageError("algorithm", "one of " + known, "'" + std::string(text) + "'");
}

TrafficEntry& Ledger::entry(const TrafficKey& key) {
  // Messages of one exchange come in runs of the same key.
  if (recent_ < entries_.size() && entries_[recent_].key == key) return entries_[recent_];
  auto at = std::lower_bound(entries_.begin(), entries_.end(), key, before);
  if (at == entries_.end() || at->key != key) {
    at = entries_.insert(at, TrafficEntry{.key = key, .sent = {}, .received = {}});
  }
  recent_ = static_cast<std::size_t>(at - entries_.begin());
  return *at;
}

void Ledger::sent(const TrafficKey& key, const quant::WireBytes& bytes) {
  entry(key).sent += Traffic{.bytes = bytes, .messages = 1};
}

void Ledger::received(const TrafficKey& key, std::uint64_t bytes) {
  entry(key).received += Traffic{.bytes = {.payload = bytes}, .messages = 1};
}

Traffic Ledger::sent_on(int link, bool with_control) const {
  Traffic sum;
  for (const TrafficEntry& e : entries_) {
    if (e.key.link != link) continue;
    if (e.key.call.role == quant::Role::kControl && !with_control) continue;
    sum += e.sent;
  }
  return sum;
}

void Ledger::reset() { *this = Ledger(); }

Ledger Ledger::since(const Ledger& earlier) const {
  Ledger difference;
  difference.collectives_ = collectives_ - earlier.collectives_;
  for (const TrafficEntry& now : entries_) {
    TrafficEntry d = now;
    const auto at =
        std::lower_bound(earlier.entries_.begin(), earlier.entries_.end(), now.key, before);
    if (at != earlier.entries_.end() && at->key == now.key) {
      d.sent = minus(now.sent, at->sent);
      d.received = minus(now.received, at->received);
    }
    if (d.sent != Traffic{} || d.received != Traffic{}) difference.entries_.push_back(d);
  }
  return difference;
}

void Ledger::add(const Ledger& other) {
  collectives_ += other.collectives_;
  for (const TrafficEntry& e : other.entries_) {
    TrafficEntry& mine = entry(e.key);
    mine.sent += e.sent;
    mine.received += e.received;
  }
}

}  // namespace zeropp::hierarchy
