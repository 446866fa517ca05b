#include "hierarchy/topology.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "quant/error.h"

namespace zeropp::hierarchy {

Topology::Topology(std::vector<Level> levels) : levels_(std::move(levels)), prefix_{1} {
  if (levels_.empty()) throw UsageError("topology", "at least one level", "none");
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    const Level& level = levels_[i];
    if (level.fan_out < 1) {
      throw UsageError("topology", fmt::format("fan-out >= 1 of level '{}'", level.name),
                       std::to_string(level.fan_out));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (levels_[j].name == level.name) {
        throw UsageError("topology", "levels of different names", "'" + level.name + "' twice");
      }
    }
    constexpr int max_ranks = 1 << 14;  // Limit of the random key, quant/rng.h.
    if (level.fan_out > max_ranks / ranks_) {
      throw UsageError("topology", fmt::format("at most {} ranks", max_ranks),
                       fmt::format("{} x {}", ranks_, level.fan_out));
    }
    ranks_ *= level.fan_out;
    prefix_.push_back(ranks_);
  }
}

Topology Topology::two_level(int nodes, int ranks_per_node) {
  return Topology(
      {{.name = "node", .fan_out = ranks_per_node}, {.name = "net", .fan_out = nodes}});
}

int Topology::group_size(int level) const {
  return prefix_.at(static_cast<std::size_t>(level + 1));
}

int Topology::link_class(int a, int b) const {
  if (a == b) return -1;
  for (int i = 0; i + 1 < levels(); ++i) {
    if (a / group_size(i) == b / group_size(i)) return i;
  }
  return levels() - 1;
}

int Topology::level_named(const std::string& name) const {
  std::vector<std::string> known;
  for (int i = 0; i < levels(); ++i) {
    if (level(i).name == name) return i;
    known.push_back(level(i).name);
  }
  throw UsageError("topology", fmt::format("one of the levels {}", fmt::join(known, ", ")),
                   "'" + name + "'");
}

}  // namespace zeropp::hierarchy
