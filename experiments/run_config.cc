#include "experiments/run_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/clusters.h"
#include "experiments/resolve.h"
#include "experiments/sweep/sweep.h"
#include "quant/error.h"
#include "zero/data.h"
#include "zero/gpt.h"

namespace zeropp::experiments {
namespace {

VariantPatch read_patch(const Json& item, std::size_t index) {
  const std::string where = fmt::format("zeropp.variants[{}]", index);
  if (!item.is_object()) throw UsageError("config", where + " to be an object", item.dump());
  VariantPatch patch{.name = "", .baseline = false, .config = item};
  if (!item.contains("name") || !item["name"].is_string()) {
    throw UsageError("config", where + ".name to be a string",
                     item.contains("name") ? item["name"].dump() : "nothing");
  }
  patch.name = item["name"].get<std::string>();
  check_name(patch.name, where);
  if (item.contains("baseline")) {
    if (!item["baseline"].is_boolean()) {
      throw UsageError("config", where + ".baseline to be true or false",
                       item["baseline"].dump());
    }
    patch.baseline = item["baseline"].get<bool>();
  }
  patch.config.erase("name");
  patch.config.erase("baseline");
  return patch;
}

/// What all variants of a run share: else their losses and bytes could not be compared.
void check_shared(const VariantPatch& patch) {
  for (const char* key : {"cluster", "transport", "model", "data", "validation_fraction",
                          "seeds", "workers", "timeout_s", "variants", "sweep", "compare"}) {
    const std::string path = std::string("zeropp.") + key;
    if (ConfigView(patch.config).has(path)) {
      throw UsageError(fmt::format("config, variant '{}'", patch.name),
                       path + " to be set once for all variants", "it in a variant");
    }
  }
}

std::vector<VariantPatch> read_patches(const Json& config) {
  const Json* list = ConfigView(config).find("zeropp.variants");
  if (list == nullptr) return {VariantPatch{.config = Json::object()}};
  if (list->empty()) throw UsageError("config", "zeropp.variants to name variants", "[]");
  std::vector<VariantPatch> patches;
  std::set<std::string> names;
  std::size_t baselines = 0;
  for (const Json& item : *list) {
    patches.push_back(read_patch(item, patches.size()));
    if (!names.insert(patches.back().name).second) {
      throw UsageError("config", "zeropp.variants with different names",
                       "'" + patches.back().name + "' twice");
    }
    baselines += patches.back().baseline ? 1 : 0;
  }
  if (baselines != 1) {
    throw UsageError("config", "exactly one of zeropp.variants with \"baseline\": true",
                     std::to_string(baselines));
  }
  return patches;
}

/// An override that every variant writes over would change nothing.
void check_overrides_used(const std::vector<std::string>& paths,
                          const std::vector<VariantPatch>& patches) {
  for (const std::string& path : paths) {
    const bool used = std::any_of(
        patches.begin(), patches.end(),
        [&](const VariantPatch& patch) { return !ConfigView(patch.config).has(path); });
    if (!used) {
      throw UsageError("override", "a key that some variant does not set itself",
                       "'" + path + "', which every variant sets");
    }
  }
}

/// SHA-256 of what decides a variant's results: not seeds, names, threads.
std::string variant_hash(const VariantConfig& variant) {
  Json config = Json::parse(variant.resolved);
  for (const char* key : {"seeds", "variants", "workers", "timeout_s", "compare"}) {
    config["zeropp"].erase(key);
  }
  for (const char* key : {"every", "keep"}) config["zeropp"]["checkpoint"].erase(key);
  const std::string text = nlohmann::json(config).dump();  // Sorted keys.
  return zero::sha256_hex(text.data(), text.size());
}

std::string run_hash(const RunConfig& run) {
  std::string text;
  for (const VariantConfig& v : run.variants) {
    text += fmt::format("{} {} {}\n", v.name, v.baseline, v.hash);
  }
  text += fmt::format("{} {} {}", fmt::join(run.seeds, " "), run.declared.margin,
                      run.declared.alpha);
  return zero::sha256_hex(text.data(), text.size());
}

/// Exact rules without a codec of their role, and patterns that no tensor's name matches.
void add_idle_exact_rules(const Json& config, const VariantConfig& v,
                          std::vector<std::string>& ignored) {
  const auto check = [&](const char* role, bool coded) {
    const Json::json_pointer at(fmt::format("/zeropp/exact/{}", role));
    if (!config.contains(at) || !config[at].is_object()) return;
    const std::string path = fmt::format("zeropp.exact.{}", role);
    if (!coded) return ignored.push_back(path);
    const Json patterns = config[at].value("patterns", Json::array());
    if (patterns.empty()) return;
    const auto model = zero::make_gpt(v.model);
    for (const Json& pattern : patterns) {
      zero::ExactRule rule{.one_d = false, .below = 0, .patterns = {pattern}};
      const auto applies = [&](const zero::TensorSpec& t) { return rule.applies(t); };
      if (std::none_of(model->tensors().begin(), model->tensors().end(), applies)) {
        ignored.push_back(fmt::format("{}.patterns '{}'", path, pattern.get<std::string>()));
      }
    }
  };
  check("weights", v.engine.weight_codec != nullptr);
  check("gradients", v.engine.compresses_gradients());
}

VariantConfig make_variant(const Json& base, const VariantPatch& patch,
                           const hierarchy::Topology& topology, bool named) {
  try {
    Json config = base;
    for (const char* key : {"variants", "sweep"}) config["zeropp"].erase(key);
    deep_merge(config, patch.config);
    auto ignored = check_keys(config);
    VariantConfig variant = resolve_variant(config, topology);
    add_idle_exact_rules(config, variant, ignored);
    variant.name = patch.name;
    variant.baseline = patch.baseline;
    variant.compared_with = patch.compared_with;
    variant.axes = patch.axes.is_object() ? to_text(patch.axes, -1) : "{}";
    variant.ignored_keys = std::move(ignored);
    Json resolved = Json::parse(variant.resolved);
    resolved["zeropp"]["variants"] = Json::array({{{"name", patch.name}, {"baseline", true}}});
    variant.resolved = to_text(resolved);
    variant.hash = variant_hash(variant);
    return variant;
  } catch (const UsageError& e) {
    if (!named) throw;
    rethrow_in(fmt::format("variant '{}'", patch.name), e.what());
  }
}

}  // namespace

RunConfig parse_run_config(std::string_view text, const std::string& source,
                           const std::vector<std::string>& overrides) {
  Json config = parse_json(text, source);
  std::vector<SweepAxis> axes;
  const auto paths = apply_overrides(config, overrides, &axes);
  for (const std::string key : {"variants", "sweep"}) {  // Also accepted at the top.
    if (!config.contains(key)) continue;
    if (ConfigView(config).has("zeropp." + key)) {
      throw UsageError("config", key + " once", fmt::format("{0} and zeropp.{0}", key));
    }
    at_path(config, "zeropp." + key) = config[key];
    config.erase(key);
  }
  check_keys(config);  // First as written: an error of the file is not one of its variants.
  at_path(config, "zeropp");
  if (!config["zeropp"].is_object()) config["zeropp"] = Json::object();

  const ConfigView view(config);
  RunConfig run;
  run.stem = std::filesystem::path(source).stem().string();
  run.topology = resolve_topology(view);
  if (view.has("zeropp.cluster.preset")) run.preset = view.get_string("zeropp.cluster.preset");
  cluster_links(run.topology, run.preset);  // Refuses an unknown preset now.
  run.data = view.get_string("zeropp.data");
  run.validation_fraction = view.get_double("zeropp.validation_fraction");
  run.seeds = resolve_seeds(view);
  run.transport = view.get_string("zeropp.transport");
  run.cluster_check = view.get_string("zeropp.cluster.check");
  run.workers = static_cast<int>(view.get_int("zeropp.workers"));
  run.timeout_s = view.get_double("zeropp.timeout_s");
  run.declared = {.margin = view.get_double("zeropp.compare.margin"),
                  .alpha = view.get_double("zeropp.compare.alpha")};
  std::vector<VariantPatch> patches = read_patches(config);
  check_overrides_used(paths, patches);
  bool named = view.has("zeropp.variants");
  if (view.has("zeropp.sweep") || !axes.empty()) {
    patches = expand_sweep(config, axes, patches, named);
    named = true;
  } else {
    const auto base = std::find_if(patches.begin(), patches.end(),
                                   [](const VariantPatch& patch) { return patch.baseline; });
    for (VariantPatch& patch : patches) patch.compared_with = base->name;
  }
  for (const VariantPatch& patch : patches) check_shared(patch);
  for (const VariantPatch& patch : patches) {
    run.variants.push_back(make_variant(config, patch, run.topology, named));
  }
  run.hash = run_hash(run);
  return run;
}

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_run_config(read_text(path), path, overrides);
}

std::string job_config(const VariantConfig& variant, std::uint64_t seed) {
  Json config = Json::parse(variant.resolved);
  config["zeropp"]["seeds"] = Json::array({seed});
  return to_text(config) + "\n";
}

}  // namespace zeropp::experiments
