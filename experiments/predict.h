#pragma once

#include <functional>
#include <vector>

#include "hierarchy/cost.h"
#include "zero/engine.h"

namespace zeropp::experiments {

/// What one optimizer step sends, from the policy, the model's units and the price of each
/// collective alone: nothing runs. Phases eval and init and the role control are left out.
struct StepPrediction {
  std::vector<std::vector<hierarchy::Traffic>> sent;  ///< [rank][level].
  std::uint64_t collectives = 0;                      ///< Calls, the same on every rank.

  StepPrediction& operator+=(const StepPrediction& o);
};

struct StepKind {
  /// hpZ: the secondary holds the weights already, as after a skipped step.
  bool secondary_valid = false;
  bool applied = true;  ///< False: skipped, no weights are gathered at its end.
};

/// Does the first step find a valid secondary? With `delta` it begins as a slice of the initial
/// weights, which every rank can compute.
bool starts_with_secondary(const zero::EngineConfig& config);

/// `only`: counts the tensors for which it holds (scalars too if it is empty).
StepPrediction predict_step(const hierarchy::Topology& topology, const zero::Model& model,
                            const zero::EngineConfig& config, StepKind kind = {},
                            const std::function<bool(const zero::TensorSpec&)>& only = {});

}  // namespace zeropp::experiments
