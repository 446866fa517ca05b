#include "experiments/clusters.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "quant/error.h"

namespace zeropp::experiments {
namespace {

using Json = nlohmann::json;

Link parse_link(const Json& json) {
  return {.bandwidth_gbs = json.at("bandwidth_gbs"), .latency_us = json.at("latency_us")};
}

struct Presets {
  double base_us = 0, direct_efficiency = 1;
  std::vector<ClusterPreset> list;
};

const Presets& presets() {
  static const Presets parsed = [] {
    const Json file = Json::parse(kClustersJson);
    Presets p;
    p.base_us = file.at("base_us");
    p.direct_efficiency = file.at("all_to_all_efficiency");
    for (const Json& json : file.at("clusters")) {
      ClusterPreset& c = p.list.emplace_back();
      c.name = json.at("name");
      c.title = json.at("title");
      c.source = json.at("source");
      c.ranks_per_node = json.at("ranks_per_node");
      c.node = parse_link(json.at("node"));
      c.net = parse_link(json.at("net"));
      c.peak_16bit_tflops = json.value("peak_16bit_tflops", 0.0);
      c.hbm_tbs = json.value("hbm_tbs", 0.0);
    }
    return p;
  }();
  return parsed;
}

const ClusterPreset& find_preset(const std::string& name) {
  std::string known;
  for (const ClusterPreset& preset : cluster_presets()) {
    if (preset.name == name) return preset;
    known += (known.empty() ? "" : ", ") + preset.name;
  }
  throw UsageError("zeropp.cluster.preset", "one of " + known, fmt::format("'{}'", name));
}

}  // namespace

const std::vector<ClusterPreset>& cluster_presets() { return presets().list; }

std::optional<ClusterLinks> cluster_links(const hierarchy::Topology& topology,
                                          const std::string& preset) {
  const ClusterPreset* named = preset.empty() ? nullptr : &find_preset(preset);
  ClusterLinks links;
  links.name = named != nullptr ? named->name : "config";
  links.base_us = presets().base_us;
  links.direct_efficiency = presets().direct_efficiency;
  int known = 0;
  for (int i = 0; i < topology.levels(); ++i) {
    const hierarchy::Level& level = topology.level(i);
    Link link;
    if (named != nullptr) {
      link = i == 0 ? named->node : named->net;
      if (i > 1) {
        const int nodes = topology.group_size(i - 1) / topology.group_size(0);
        link.bandwidth_gbs *= nodes;
      }
    }
    if (level.bandwidth_gbs > 0) link.bandwidth_gbs = level.bandwidth_gbs;
    if (level.latency_us > 0) link.latency_us = level.latency_us;
    if (link.bandwidth_gbs > 0) ++known;
    links.levels.push_back(link);
  }
  if (known == 0) return std::nullopt;
  if (known < topology.levels()) {
    throw UsageError("zeropp.cluster.levels",
                     "a bandwidth for every level (or for none, or a preset)",
                     fmt::format("{} of {} levels with one", known, topology.levels()));
  }
  return links;
}

}  // namespace zeropp::experiments
