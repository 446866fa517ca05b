#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/codec_state.h"
#include "zero/optimizer.h"

namespace zeropp::zero {

/// What differences of weights are taken to: the replica of stages 1 and 2, the secondary at
/// stage 3. Whole tensors in canonical order, so that any stage and any N can take it over.
struct WeightReference {
  std::vector<std::int64_t> versions;  ///< By tensor, of the weights it holds; -1: none.
  std::vector<std::vector<float>> tensors;
  bool empty() const { return tensors.empty(); }
};

/// What PowerSGD keeps on one rank, by tensor; empty where it keeps nothing.
struct LowRankState {
  std::vector<std::vector<float>> error;  ///< E, whole matrices, without the loss scale.
  std::vector<std::vector<float>> right;  ///< Q, equal on all ranks.
};

/// All that a training run is between two steps, free of stage, buckets and memory layout:
/// whole tensors in canonical order, fp32. Residuals and PowerSGD's state alone are by rank.
struct Checkpoint {
  std::uint64_t step = 0;     ///< Steps done, skipped ones too.
  std::uint64_t version = 0;  ///< Updates applied.
  std::uint64_t updates = 0;  ///< Adam's t.
  std::uint64_t skipped = 0;
  int consecutive_skips = 0;
  std::uint64_t samples = 0;  ///< Training samples read: where the data goes on.
  LossScaler::State loss_scale;
  bool has_momentum = false, has_variance = false;
  std::vector<std::vector<float>> state;  ///< By tensor master | m | v; absent moments are 0.

  int ranks = 0;
  /// Equal texts mean that residuals fit key by key: topology, algorithm, policy, codecs, ...
  std::string layout;
  std::string weight_codec, gradient_codecs;  ///< As the engine names them; "" = exact.
  /// Copies that are no function of the masters: those of `delta` and of stateful weight
  /// codecs. And hpZ's secondary where a skipped step has left it current.
  WeightReference copies;
  std::vector<std::uint64_t> applied;                        ///< By role: CodecState::applied.
  std::vector<std::vector<quant::ResidualPiece>> residuals;  ///< By rank.
  std::vector<LowRankState> low_rank;                        ///< By rank; empty without.
};

}  // namespace zeropp::zero
