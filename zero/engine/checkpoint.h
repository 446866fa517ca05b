#pragma once

#include <string>
#include <vector>

#include "zero/checkpoint.h"
#include "zero/engine/context.h"
#include "zero/engine/gradients.h"
#include "zero/engine/optimizer_state.h"
#include "zero/engine/routes.h"
#include "zero/engine/weights.h"

namespace zeropp::zero {

/// The parts of an engine that a checkpoint is made of.
struct TrainingParts {
  EngineContext& context;
  const RouteTable& routes;
  OptimizerState& optimizer;
  WeightStore& weights;
  GradientStore& gradients;
  LossScaler& scaler;
};

/// See Engine::gather_reference.
WeightReference gather_copies(EngineContext& context, const WeightStore& weights);

/// Engine::save and Engine::load, but for the masters' gathering and what the engine itself
/// counts.
Checkpoint save_training(const TrainingParts& parts, const quant::CodecState& codec_state);
std::vector<std::string> load_training(const TrainingParts& parts,
                                       quant::CodecState& codec_state,
                                       const Checkpoint& checkpoint);

}  // namespace zeropp::zero
