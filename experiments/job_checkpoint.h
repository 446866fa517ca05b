#pragma once

#include <cstdint>
#include <vector>

#include "experiments/rank_result.h"
#include "zero/checkpoint.h"

namespace zeropp::experiments {

/// A job between two steps: its training, and all that it has measured.
struct JobCheckpoint {
  zero::Checkpoint training;
  std::vector<RankResult> ranks;
  std::vector<StepRecord> steps;
  double wall_seconds = 0;
  std::uint64_t unreferenced_gathers = 0;
};

}  // namespace zeropp::experiments
