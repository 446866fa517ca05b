#pragma once

#include <cstdint>
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
};

/// The results of all ranks on rank 0, which `results` has one element a rank for; each rank
/// brings its own element. Between processes of one program on machines alike; role control.
void gather_results(hierarchy::Transport& transport, std::vector<RankResult>& results);

}  // namespace zeropp::experiments
