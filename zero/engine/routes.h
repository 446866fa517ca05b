#pragma once

#include <span>
#include <vector>

#include "zero/engine/context.h"

namespace zeropp::zero {

/// Which codec each tensor takes, after the exact rules.
class RouteTable {
 public:
  explicit RouteTable(const EngineContext& context);

  /// Null: exact.
  const quant::Codec* weights(std::uint32_t tensor) const { return weights_[tensor]; }
  /// One a level, innermost first; empty: exact in the wire dtype.
  std::span<const quant::Codec* const> gradients(std::uint32_t tensor) const {
    return gradients_[tensor] ? std::span<const quant::Codec* const>(levels_)
                              : std::span<const quant::Codec* const>();
  }
  /// It travels as PowerSGD's factors; gradients() is empty then.
  bool low_rank(std::uint32_t tensor) const { return low_rank_[tensor]; }
  bool codes_weights() const;
  /// The codec of weights codes differences to a copy that ranks hold (`delta`).
  bool codes_differences() const { return differences_; }
  /// What ranks hold of weights between steps is no function of the masters: differences, or
  /// what a codec with state has sent.
  bool keeps_copies(const EngineConfig& config) const {
    return differences_ ||
           (config.weight_codec && config.weight_codec->traits().stateful && codes_weights());
  }
  bool difference(std::uint32_t tensor) const {
    return differences_ && weights_[tensor] != nullptr;
  }
  std::vector<Route> describe(const EngineContext& context) const;

 private:
  std::vector<const quant::Codec*> weights_;
  bool differences_ = false;
  std::vector<bool> gradients_, low_rank_;
  std::vector<const quant::Codec*> levels_;
};

/// Does a codec of the config keep state?
bool keeps_codec_state(const EngineConfig& config);

/// The part of check_config about codecs of differences (`delta`), which need a reference that
/// they can add to. Not with gradients; stage 3 without a secondary at a level's group and
/// hierarchical gathers; HSDP, MiCS.
void check_differences(const EngineConfig& config, const hierarchy::Topology& topology);

}  // namespace zeropp::zero
