// The resolved config: every honoured key with its value or default. Running it again gives the
// same variant; its hash says whether a finished job is the one asked for.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "experiments/resolve.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

/// Every honoured key that is a value, in the table's order.
Json with_defaults(const ConfigView& c) {
  Json out = Json::object();
  const auto write = [&](std::span<const KeySpec> keys) {
    for (const KeySpec& spec : keys) {
      if (spec.status != KeyStatus::kHonoured || (spec.types & kObject) != 0) continue;
      Json value = c.get(spec.path);
      if (value.is_null()) continue;
      const bool integer = (spec.types & kInt) != 0 && value.is_number_float();
      if (integer) value = as_integer(value);
      if (spec.types == kNumber) value = value.get<double>();
      at_path(out, spec.path) = std::move(value);
    }
  };
  write(deepspeed_keys());
  write(zeropp_keys());
  return out;
}

Json levels_json(const hierarchy::Topology& t) {
  Json levels = Json::array();
  for (int i = 0; i < t.levels(); ++i) {
    const hierarchy::Level& level = t.level(i);
    Json item = {{"name", level.name}, {"size", level.fan_out}};
    if (level.bandwidth_gbs > 0) item["bandwidth_gbs"] = level.bandwidth_gbs;
    if (level.latency_us > 0) item["latency_us"] = level.latency_us;
    levels.push_back(std::move(item));
  }
  return levels;
}

std::string reduce_at_name(zero::ReduceAt at) {
  if (at == zero::ReduceAt::kBoundary) return "boundary";
  return at == zero::ReduceAt::kMicroStep ? "micro_step" : "two_hop";
}

}  // namespace

std::string resolved_json(const Json& config, const VariantConfig& v,
                          const hierarchy::Topology& t) {
  const ConfigView c(config);
  Json out = with_defaults(c);
  const zero::EngineConfig& e = v.engine;
  out["train_micro_batch_size_per_gpu"] = e.micro_batch;
  out["gradient_accumulation_steps"] = e.gas;
  out["train_batch_size"] = std::int64_t{1} * e.micro_batch * e.gas * t.ranks();
  out["communication_data_type"] = quant::name(e.wire);
  out["data_types"]["grad_accum_dtype"] = quant::name(e.grad_accum);
  if (!v.engine.schedule.type.empty()) {
    out["scheduler"]["params"]["total_num_steps"] = e.schedule.total_num_steps;
  }
  out["zero_optimization"]["zero_hpz_partition_size"] =
      e.policy.secondary > 1 ? e.policy.secondary : 1;
  Json& z = out["zeropp"];
  z.erase("cluster");
  z["cluster"]["levels"] = levels_json(t);
  if (c.has("zeropp.cluster.preset")) z["cluster"]["preset"] = c.get("zeropp.cluster.preset");
  z["seq"] = e.seq;
  z["codecs"] = {{"weights", e.weight_codec ? v.weight_codec : "none"},
                 {"gradients", v.gradient_codecs}};
  if (e.powersgd_rank > 0) z["codecs"]["gradients"] = v.gradient_codecs.at(0);
  if (!e.compresses_gradients()) z["codecs"]["gradients"] = "none";
  z.erase("secondary");
  if (v.secondary == "none" || !std::isdigit(static_cast<unsigned char>(v.secondary[0]))) {
    z["secondary"] = v.secondary;
  }
  if (!v.load.empty()) z["checkpoint"]["load_sha256"] = v.load_sha256;
  z["algorithm"] = hierarchy::name(e.algorithm);
  z["reduce_at"] = reduce_at_name(e.policy.reduce_at);
  out = with_defaults(ConfigView(out));  // Back into the table's order.
  if (e.schedule.type.empty()) out.erase("scheduler");
  return to_text(out);
}

hierarchy::Topology resolve_topology(const ConfigView& c) {
  const bool counts = c.has("zeropp.cluster.nodes") || c.has("zeropp.cluster.ranks_per_node");
  const Json* list = c.find("zeropp.cluster.levels");
  if (list != nullptr && counts) {
    throw UsageError("config",
                     "zeropp.cluster to give levels, or nodes and ranks_per_node, not both",
                     to_text(c.get("zeropp.cluster"), -1));
  }
  if (list == nullptr) {
    // Two nodes of four ranks where the config says nothing.
    const auto count = [&](const char* path, std::int64_t fallback) {
      return static_cast<int>(
          std::min<std::int64_t>(c.has(path) ? c.get_int(path) : fallback, 1 << 20));
    };
    return hierarchy::Topology::two_level(
        count("zeropp.cluster.nodes", counts ? 1 : 2),
        count("zeropp.cluster.ranks_per_node", counts ? 1 : 4));
  }
  std::vector<hierarchy::Level> levels;
  for (const Json& item : *list) {
    const std::string where = fmt::format("zeropp.cluster.levels[{}]", levels.size());
    if (!item.is_object() || !item.contains("name") || !item["name"].is_string() ||
        !item.contains("size") || !item["size"].is_number_integer()) {
      throw UsageError("config", where + " to be {\"name\": string, \"size\": integer}",
                       to_text(item, -1));
    }
    check_name(item["name"].get<std::string>(), where);
    hierarchy::Level level{.name = item["name"].get<std::string>()};
    level.fan_out = static_cast<int>(std::clamp<std::int64_t>(item["size"], -1, 1 << 20));
    for (const auto& [key, value] : item.items()) {
      if (key == "name" || key == "size") continue;
      if (key != "bandwidth_gbs" && key != "latency_us") {
        throw UsageError("config", where + " with name, size, bandwidth_gbs, latency_us",
                         "'" + key + "'");
      }
      if (!value.is_number() || value.get<double>() < 0) {
        throw UsageError("config", where + "." + key + " to be a number >= 0",
                         to_text(value, -1));
      }
      (key == "latency_us" ? level.latency_us : level.bandwidth_gbs) = value.get<double>();
    }
    levels.push_back(std::move(level));
  }
  return hierarchy::Topology(std::move(levels));
}

std::vector<std::uint64_t> resolve_seeds(const ConfigView& c) {
  const Json value = c.get("zeropp.seeds");
  const auto fail = [&] {
    throw UsageError("config",
                     "zeropp.seeds to be a count, or a list of different integers >= 0",
                     to_text(value, -1));
  };
  std::vector<std::uint64_t> seeds;
  if (value.is_array()) {
    std::set<std::uint64_t> seen;
    for (const Json& item : value) {
      if (!item.is_number_integer() || item < 0) fail();
      seeds.push_back(item.get<std::uint64_t>());
      if (!seen.insert(seeds.back()).second) fail();
    }
  } else {
    const std::int64_t count = as_integer(value);
    if (count < 1 || count > 10'000) fail();
    for (std::int64_t i = 1; i <= count; ++i) seeds.push_back(static_cast<std::uint64_t>(i));
  }
  if (seeds.empty()) fail();
  return seeds;
}

zero::StateLayout VariantConfig::layout() const {
  zero::StateLayout l;
  l.param = l.grad = model.dtype;
  l.accum = engine.grad_accum;
  l.adam = engine.optimizer.kind != zero::OptimizerKind::kSgd;
  l.momentum = l.adam || engine.optimizer.momentum != 0;
  return l;
}

void rethrow_in(const std::string& where, const std::string& what) {
  // UsageError's text is "[area] expected X, found Y".
  const auto area = what.find("] expected ");
  const auto found = what.rfind(", found ");
  if (what.empty() || what[0] != '[' || area == std::string::npos ||
      found == std::string::npos) {
    throw UsageError(where, "a valid request", what);
  }
  throw UsageError(what.substr(1, area - 1) + ", " + where,
                   what.substr(area + 11, found - area - 11), what.substr(found + 8));
}

}  // namespace zeropp::experiments
