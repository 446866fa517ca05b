#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "experiments/job.h"
#include "hierarchy/transport.h"

namespace zeropp::experiments {

/// What a rank hands over when it has ended.
struct RankResult {
  hierarchy::Ledger ledger;
  RankMemory memory;
  quant::ErrorSums error;
  std::uint64_t underflow = 0, collectives = 0;
  double math = 0, codec = 0;

  /// With what the same rank measured before: sums, and the larger peaks.
  void add(const RankResult& earlier);
};

/// For this program on this machine alone.
std::vector<std::byte> pack_result(const RankResult& result);
/// UsageError: too few bytes.
RankResult unpack_result(std::span<const std::byte> bytes);

/// The results of all ranks on rank 0, which `results` has one element a rank for; each rank
/// brings its own element. Between processes of one program on machines alike; role control.
void gather_results(hierarchy::Transport& transport, std::vector<RankResult>& results);

}  // namespace zeropp::experiments
