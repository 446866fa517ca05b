#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hierarchy/topology.h"

namespace zeropp::experiments {

/// A link of the time model.
struct Link {
  double bandwidth_gbs = 0;  ///< GB/s (1e9) out of one member of the level's group.
  double latency_us = 0;     ///< Per message.
};

/// One entry of experiments/clusters.json, which says where every figure comes from.
struct ClusterPreset {
  std::string name, title, source;
  int ranks_per_node = 1;
  Link node;  ///< Out of one rank, inside its node.
  Link net;   ///< Out of one node: all its network cards together.
  double peak_16bit_tflops = 0, hbm_tbs = 0;  ///< Per rank; 0 = unknown.
};
const std::vector<ClusterPreset>& cluster_presets();

/// Links of a topology, one a level, innermost first.
struct ClusterLinks {
  std::string name;    ///< Of the preset; "config" when all figures are the topology's own.
  double base_us = 0;  ///< Start of one collective.
  double direct_efficiency = 1;  ///< Direct exchanges across nodes against a ring's bandwidth.
  std::vector<Link> levels;
};

/// Figures of the topology's own levels, else the preset's: level 0 is `node`, outer levels are
/// `net` times the nodes of a member. Empty if neither is given. UsageError: an unknown preset
/// (lists the known ones), or figures for some levels only.
std::optional<ClusterLinks> cluster_links(const hierarchy::Topology& topology,
                                          const std::string& preset);

extern const char* const kClustersJson;  ///< The text of experiments/clusters.json.

}  // namespace zeropp::experiments
