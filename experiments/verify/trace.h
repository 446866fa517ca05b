#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/verify/matrix.h"

namespace zeropp::experiments::verify {

/// Everything a run must reproduce: after every step the loss and all masters and moments.
struct Trace {
  std::vector<double> losses;
  std::vector<std::vector<std::vector<float>>> states;  ///< [step][tensor][master | m | v].
  std::vector<std::string> tensors;
};

/// Trains the cell for `steps` steps, checking replicas (law 3) on the way.
/// Throws what the run throws.
Trace run_cell(const Cell& cell, int steps, zero::Sabotage sabotage = zero::Sabotage::kNone);

/// Nothing if equal bit for bit; else step, tensor and element of the first difference.
std::optional<std::string> first_difference(const Trace& expected, const Trace& found);

}  // namespace zeropp::experiments::verify
