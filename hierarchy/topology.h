#pragma once

#include <string>
#include <vector>

namespace zeropp::hierarchy {

/// One level of links. The level's name is its link class.
struct Level {
  std::string name;
  int fan_out = 1;
  double bandwidth_gbs =
      0;                  ///< GB/s (1e9) out of one member of this level's group; 0 = unknown.
  double latency_us = 0;  ///< Per message.
};

/// Levels of links, innermost first; ranks are numbered so that every group is consecutive.
/// Rank r has the mixed-radix digits d0 + F0*(d1 + F1*(d2 + ...)).
class Topology {
 public:
  explicit Topology(
      std::vector<Level> levels);  ///< UsageError: no level, fan_out < 1, same name.
  /// {"node", ranks_per_node}, {"net", nodes}.
  static Topology two_level(int nodes, int ranks_per_node);

  int ranks() const { return ranks_; }
  int levels() const { return static_cast<int>(levels_.size()); }
  const Level& level(int i) const { return levels_.at(static_cast<std::size_t>(i)); }
  /// Ranks in one group joined by levels 0..level; group_size(-1) = 1.
  int group_size(int level) const;
  /// group_size(-1), group_size(0), ..., = 1, F0, F0*F1, ..., N.
  const std::vector<int>& prefix_sizes() const { return prefix_; }
  /// Level of the link between two ranks: the outermost one on which they differ; -1 if equal.
  int link_class(int a, int b) const;
  /// Index of the level with that name; UsageError lists the names.
  int level_named(const std::string& name) const;

 private:
  std::vector<Level> levels_;
  std::vector<int> prefix_;
  int ranks_ = 1;
};

}  // namespace zeropp::hierarchy
