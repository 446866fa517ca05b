#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "quant/codec.h"

namespace zeropp::hierarchy::detail {

/// The fault ReduceOptions::test_own_unrounded: sums in which the own contribution skips encode
/// and decode. Slow and outside the memory ledger; tests alone get here.
class OwnRaw {
 public:
  explicit OwnRaw(bool active) : active_(active) {}
  bool active() const { return active_; }

  /// (wires[0] + ... ) / divisor in fp32, with `own` in place of wires[own_source]. Valid until
  /// the next call.
  quant::MutView sum(const quant::Codec& codec,
                     std::span<const std::span<const std::byte>> wires, std::size_t own_source,
                     quant::ConstView own, float divisor, std::size_t n);
  /// Keeps this rank's unrounded partial mean for the next hop.
  void keep(std::uint32_t tensor, int chunk, quant::ConstView sum);
  /// A null view if nothing was kept.
  quant::ConstView find(std::uint32_t tensor, int chunk) const;

 private:
  bool active_;
  std::vector<float> sum_, term_;
  std::map<std::pair<std::uint32_t, int>, std::vector<float>> kept_;
};

}  // namespace zeropp::hierarchy::detail
