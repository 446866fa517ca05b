#include "experiments/rank_result.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "quant/error.h"

namespace zeropp::experiments {
namespace {

using hierarchy::TrafficEntry;

/// All but the ledger's entries.
struct Fixed {
  RankMemory memory;
  quant::ErrorSums error;
  std::uint64_t underflow = 0, collectives = 0, ledger_collectives = 0;
  double math = 0, codec = 0;
};
static_assert(std::is_trivially_copyable_v<Fixed>);
static_assert(std::is_trivially_copyable_v<TrafficEntry>);

}  // namespace

std::vector<std::byte> pack_result(const RankResult& r) {
  const Fixed fixed{.memory = r.memory,
                    .error = r.error,
                    .underflow = r.underflow,
                    .collectives = r.collectives,
                    .ledger_collectives = r.ledger.collectives(),
                    .math = r.math,
                    .codec = r.codec};
  const auto& entries = r.ledger.entries();
  std::vector<std::byte> bytes(sizeof fixed + entries.size() * sizeof(TrafficEntry));
  std::memcpy(bytes.data(), &fixed, sizeof fixed);
  if (!entries.empty()) {
    std::memcpy(bytes.data() + sizeof fixed, entries.data(),
                entries.size() * sizeof(TrafficEntry));
  }
  return bytes;
}

RankResult unpack_result(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Fixed)) {
    throw UsageError("rank result", std::to_string(sizeof(Fixed)) + " bytes or more",
                     std::to_string(bytes.size()));
  }
  Fixed fixed;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  const auto rest = bytes.subspan(sizeof fixed);
  std::vector<TrafficEntry> entries(rest.size() / sizeof(TrafficEntry));
  if (!entries.empty()) std::memcpy(entries.data(), rest.data(), rest.size());
  return {.ledger = hierarchy::Ledger(std::move(entries), fixed.ledger_collectives),
          .memory = fixed.memory,
          .error = fixed.error,
          .underflow = fixed.underflow,
          .collectives = fixed.collectives,
          .math = fixed.math,
          .codec = fixed.codec};
}

void RankResult::add(const RankResult& earlier) {
  ledger.add(earlier.ledger);
  memory.model_states = std::max(memory.model_states, earlier.memory.model_states);
  memory.peak = std::max(memory.peak, earlier.memory.peak);
  for (std::size_t k = 0; k < memory.by_kind.size(); ++k) {
    memory.by_kind[k] = std::max(memory.by_kind[k], earlier.memory.by_kind[k]);
  }
  error.add(earlier.error);
  underflow += earlier.underflow;
  collectives += earlier.collectives;
  math += earlier.math;
  codec += earlier.codec;
}

void gather_results(hierarchy::Transport& transport, std::vector<RankResult>& results) {
  using hierarchy::RecvOp;
  using hierarchy::SendOp;
  constexpr hierarchy::CallInfo call{.collective = hierarchy::Collective::kOther,
                                     .role = quant::Role::kControl};
  if (transport.rank() != 0) {
    const auto bytes = pack_result(results[static_cast<std::size_t>(transport.rank())]);
    const SendOp send{.peer = 0, .data = bytes, .bytes = {.payload = bytes.size()}};
    transport.exchange(call, {&send, 1}, {}).release();
    return;
  }
  std::vector<RecvOp> receives;
  for (int peer = 1; peer < transport.size(); ++peer) {
    receives.push_back({.peer = peer, .bytes = std::size_t{1} << 40, .variable = true});
  }
  hierarchy::Pending pending = transport.exchange(call, {}, receives);
  pending.wait();
  for (std::size_t i = 0; i < receives.size(); ++i) {
    results[i + 1] = unpack_result(pending.received(i));
  }
  pending.release();
}

}  // namespace zeropp::experiments
