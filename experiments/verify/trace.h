#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "experiments/verify/matrix.h"
#include "hierarchy/transport/mpi.h"

namespace zeropp::experiments::verify {

/// Everything a run must reproduce: after every step the loss and all masters and moments.
struct Trace {
  std::vector<double> losses;
  std::vector<std::vector<std::vector<float>>> states;  ///< [step][tensor][master | m | v].
  std::vector<std::string> tensors;
};

/// What a cell's ranks are.
struct RankPlace {
  /// Not null: one process a rank, all of which call run_cell; the trace is whole on rank 0.
  /// Checkpoints go through a folder in the machine's temporary one, which all processes must
  /// see. Null: virtual ranks.
  const hierarchy::MpiSession* mpi = nullptr;
  std::chrono::milliseconds timeout{60'000};
  bool root() const { return mpi == nullptr || mpi->rank() == 0; }
};

/// Trains the cell for `steps` steps, checking replicas (law 3) on the way.
/// Throws what the run throws.
Trace run_cell(const Cell& cell, int steps, zero::Sabotage sabotage = zero::Sabotage::kNone,
               const RankPlace& place = {});

/// Nothing if equal bit for bit; else step, tensor and element of the first difference.
std::optional<std::string> first_difference(const Trace& expected, const Trace& found);

}  // namespace zeropp::experiments::verify
