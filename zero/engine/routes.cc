#include "zero/engine/routes.h"

#include <fmt/format.h>

#include <algorithm>

#include "quant/error.h"
#include "zero/powersgd.h"

namespace zeropp::zero {

RouteTable::RouteTable(const EngineContext& context) {
  const EngineConfig& c = context.config;
  for (const auto& codec : c.grad_codecs) levels_.push_back(codec.get());
  differences_ = c.weight_codec && c.weight_codec->traits().difference;
  for (const TensorSpec& t : context.tensors()) {
    weights_.push_back(c.weight_codec && !c.exact_weights.applies(t) ? c.weight_codec.get()
                                                                     : nullptr);
    gradients_.push_back(!levels_.empty() && !c.exact_grads.applies(t));
    low_rank_.push_back(travels_low_rank(c, t));
  }
}

bool RouteTable::codes_weights() const {
  return std::any_of(weights_.begin(), weights_.end(),
                     [](const auto* c) { return c != nullptr; });
}

std::vector<Route> RouteTable::describe(const EngineContext& context) const {
  const StagePolicy& p = context.config.policy;
  const bool gathered = p.gathers_units() || p.gathers_at_step();
  std::vector<Route> routes;
  for (std::uint32_t t = 0; t < context.tensors().size(); ++t) {
    Route route{.tensor = context.tensor(t).name,
                .weights = !gathered     ? "-"
                           : weights_[t] ? weights_[t]->spec()
                                         : "exact",
                .gradients = {}};
    if (low_rank(t)) route.gradients.push_back(powersgd_spec(context.config.powersgd_rank));
    for (const auto* codec : gradients(t)) route.gradients.push_back(codec->spec());
    if (route.gradients.empty()) route.gradients.emplace_back("exact");
    routes.push_back(std::move(route));
  }
  return routes;
}

bool keeps_codec_state(const EngineConfig& config) {
  const auto keeps = [](const quant::CodecPtr& codec) {
    return codec && codec->traits().stateful;
  };
  return keeps(config.weight_codec) ||
         std::any_of(config.grad_codecs.begin(), config.grad_codecs.end(), keeps);
}

namespace {

/// A codec that does nothing is a mistake, not a run without codecs.
void check_routes(const EngineConfig& c, std::span<const TensorSpec> tensors) {
  const auto none = [&](const auto& takes_it) {
    return std::none_of(tensors.begin(), tensors.end(), takes_it);
  };
  const auto refuse = [](const char* key, const std::string& spec) {
    throw UsageError(key, "a tensor that takes it: the exact rules leave none",
                     fmt::format("'{}'", spec));
  };
  if (c.weight_codec &&
      none([&](const TensorSpec& t) { return !c.exact_weights.applies(t); })) {
    refuse("codecs.weights", c.weight_codec->spec());
  }
  if (!c.grad_codecs.empty() &&
      none([&](const TensorSpec& t) { return !c.exact_grads.applies(t); })) {
    refuse("codecs.gradients", c.grad_codecs[0]->spec());
  }
  if (c.powersgd_rank > 0 &&
      none([&](const TensorSpec& t) { return travels_low_rank(c, t); })) {
    throw UsageError("codecs.gradients",
                     "a matrix for which rank * (rows + columns) is at most half its elements",
                     fmt::format("'{}'", powersgd_spec(c.powersgd_rank)));
  }
}

void check_hops(const EngineConfig& c, int ranks) {
  if (c.algorithm != hierarchy::Algorithm::kAllToAll) return;
  if (c.policy.optimizer != 1 && c.policy.optimizer != ranks) return;
  for (const auto& codec : c.grad_codecs) {
    if (codec->spec() == c.grad_codecs.back()->spec()) continue;
    throw UsageError(
        "codecs.gradients", "one codec: all_to_all is a single hop",
        fmt::format("'{}' beside '{}'", codec->spec(), c.grad_codecs.back()->spec()));
  }
}

}  // namespace

void check_config(const EngineConfig& c, const hierarchy::Topology& topology,
                  std::span<const TensorSpec> tensors) {
  const StagePolicy& p = c.policy;
  const auto levels = static_cast<std::size_t>(topology.levels());
  const int ranks = topology.ranks();
  if (c.weight_codec && !p.gathers_units() && !p.gathers_at_step()) {
    throw UsageError("codecs.weights", "a stage that gathers weights (1, 2 or 3)",
                     fmt::format("'{}' at stage {}", c.weight_codec->spec(), p.stage));
  }
  check_differences(c, topology);
  if (c.weight_codec && c.weight_codec->traits().stateful && p.gathers_units()) {
    throw UsageError("codecs.weights",
                     "a codec without state where units gather their weights several times a "
                     "version (stage 3)",
                     fmt::format("'{}' at stage {}", c.weight_codec->spec(), p.stage));
  }
  if (c.powersgd_rank < 0 || (c.powersgd_rank > 0 && !c.grad_codecs.empty())) {
    throw UsageError("codecs.gradients", "powersgd alone, or codecs", "both");
  }
  if (c.powersgd_rank > 0 && p.reduce_at == ReduceAt::kTwoHop) {
    throw UsageError("codecs.gradients",
                     "reduce_at = boundary or micro_step with powersgd: it needs each rank's "
                     "own gradient when the world's mean is formed",
                     "two_hop");
  }
  if (c.compresses_gradients() && ranks == 1) {
    throw UsageError("codecs.gradients", "at least two ranks", "1: nothing would be sent");
  }
  if (!c.grad_codecs.empty()) {
    if (c.grad_codecs.size() != levels) {
      throw UsageError("codecs.gradients",
                       fmt::format("one codec for each of {} levels", levels),
                       std::to_string(c.grad_codecs.size()));
    }
    if (c.algorithm == hierarchy::Algorithm::kRing) {
      throw UsageError(
          "codecs.gradients",
          "algorithm hierarchical or all_to_all (a ring would quantize at every hop)", "ring");
    }
    check_hops(c, ranks);
  }
  if (c.predivide != 0 && p.optimizer != 1 && p.optimizer != ranks) {
    throw UsageError("gradient_predivide_factor", "unset with hsdp and mics",
                     std::to_string(c.predivide));
  }
  if (c.predivide < 0) {
    throw UsageError("gradient_predivide_factor", "a positive number",
                     std::to_string(c.predivide));
  }
  for (const auto& [key, value] :
       {std::pair{"gradient_accumulation_steps", c.gas},
        std::pair{"train_micro_batch_size_per_gpu", c.micro_batch}, std::pair{"seq", c.seq}}) {
    if (value < 1) throw UsageError(key, "at least 1", std::to_string(value));
  }
  if (c.reduce_bucket == 0 || c.gather_bucket == 0) {
    throw UsageError("reduce_bucket_size, allgather_bucket_size", "at least 1", "0");
  }
  check_routes(c, tensors);
}

}  // namespace zeropp::zero
