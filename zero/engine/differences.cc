// Where `delta` may be used: who holds what the differences are added to.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "quant/error.h"
#include "zero/engine/routes.h"

namespace zeropp::zero {
namespace {

void check_secondary(const EngineConfig& config, const hierarchy::Topology& topology) {
  const StagePolicy& p = config.policy;
  const std::string& spec = config.weight_codec->spec();
  const auto refuse = [](const std::string& expected, const std::string& found) {
    throw UsageError("codecs.weights", expected, found);
  };
  if (!p.scheme.empty()) {
    refuse(
        "'delta' at stage 1 or 2, or at 3 with a secondary: hsdp and mics gather inside their "
        "groups and keep no copy to add differences to",
        fmt::format("'{}' with {}", spec, p.scheme));
  }
  if (p.secondary == 0) {
    refuse("a secondary for 'delta' at stage 3: the copy that differences are added to",
           fmt::format("'{}' without one", spec));
  }
  std::vector<int> groups;
  for (int i = 0; i < topology.levels(); ++i) {
    const int size = topology.group_size(i);
    if (size > 1 && size < topology.ranks()) groups.push_back(size);
  }
  if (std::find(groups.begin(), groups.end(), p.secondary) == groups.end()) {
    const std::string sizes =
        groups.empty() ? "none here" : fmt::format("{} ranks", fmt::join(groups, " or "));
    refuse(
        fmt::format("a secondary for 'delta' at a level's group inside the world ({})", sizes),
        fmt::format("groups of {} of {} ranks", p.secondary, topology.ranks()));
  }
  if (config.algorithm != hierarchy::Algorithm::kHierarchical) {
    refuse(
        "algorithm hierarchical for 'delta' at stage 3: differences cross nodes, weights "
        "travel "
        "inside them",
        std::string(hierarchy::name(config.algorithm)));
  }
}

}  // namespace

void check_differences(const EngineConfig& config, const hierarchy::Topology& topology) {
  for (const auto& codec : config.grad_codecs) {
    if (codec->traits().difference) {
      throw UsageError("codecs.gradients",
                       "'delta' for weights alone; 'ef21' codes gradients as differences to a "
                       "state that receivers keep",
                       fmt::format("'{}'", codec->spec()));
    }
  }
  const bool differences = config.weight_codec && config.weight_codec->traits().difference;
  if (differences && config.policy.gathers_units()) check_secondary(config, topology);
}

}  // namespace zeropp::zero
