#include "experiments/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "experiments/program_info.h"
#include "experiments/verdict/verdict_json.h"

namespace zeropp::experiments {
namespace {

using Results = std::vector<Json>;  ///< Of the seeds that finished, in seed order.

Results finished(const std::vector<JobEnd>& jobs) {
  Results results;
  for (const JobEnd& job : jobs) {
    if (job.status == "ok") results.push_back(parse_json(job.result, "result.json"));
  }
  return results;
}

Json seeds_json(const std::vector<JobEnd>& jobs) {
  Json list = Json::array();
  for (const JobEnd& job : jobs) {
    Json seed = {{"seed", job.seed}, {"status", job.status}};
    const Json result = job.status == "ok" ? parse_json(job.result, "result.json") : Json();
    for (const char* key : {"final_train_loss", "final_val_loss", "final_val_loss_deployed",
                            "state_sha256", "losses_sha256", "skipped_steps"}) {
      seed[key] = result.is_object() ? result[key] : Json();
    }
    if (!job.message.empty()) seed["message"] = job.message;
    list.push_back(std::move(seed));
  }
  return list;
}

std::string variant_status(const std::vector<JobEnd>& jobs) {
  for (const char* status : {"error", "killed"}) {
    for (const JobEnd& job : jobs) {
      if (job.status == status) return status;
    }
  }
  return "ok";
}

std::map<std::uint64_t, double> val_losses(const Results& results) {
  std::map<std::uint64_t, double> losses;
  for (const Json& r : results) losses[r["seed"]] = to_double(r["final_val_loss"]);
  return losses;
}

/// Mean and sample deviation over seeds; the difference to the baseline is the mean over the
/// seeds that both finished.
Json loss_json(const Results& results, const Results& baseline) {
  const auto losses = val_losses(results);
  const auto base = val_losses(baseline);
  Json out = {{"val_mean", nullptr}, {"val_sd", nullptr}, {"diff_to_baseline", nullptr}};
  if (losses.empty()) return out;
  const auto n = static_cast<double>(losses.size());
  double mean = 0, squares = 0, diff = 0, common = 0;
  for (const auto& [seed, loss] : losses) mean += loss / n;
  for (const auto& [seed, loss] : losses) squares += (loss - mean) * (loss - mean);
  out["val_mean"] = mean;
  if (losses.size() > 1) out["val_sd"] = std::sqrt(squares / (n - 1));
  for (const auto& [seed, loss] : losses) {
    if (const auto it = base.find(seed); it != base.end()) {
      diff += loss - it->second;
      ++common;
    }
  }
  if (common > 0) out["diff_to_baseline"] = diff / common;
  return out;
}

/// The mean over seeds of numbers (an integer where all agree), key by key; lists and texts are
/// the first seed's.
Json mean_of(const Results& results, const char* key);

Json mean_values(const std::vector<Json>& values) {
  const Json& first = values.front();
  if (first.is_object()) {
    Json out = Json::object();
    for (const auto& [key, value] : first.items()) {
      std::vector<Json> inner;
      for (const Json& v : values) {
        if (v.contains(key)) inner.push_back(v[key]);
      }
      out[key] = mean_values(inner);
    }
    return out;
  }
  if (!first.is_number()) return first;
  if (std::all_of(values.begin(), values.end(), [&](const Json& v) { return v == first; })) {
    return first;
  }
  double sum = 0;
  for (const Json& v : values) sum += to_double(v);
  return sum / static_cast<double>(values.size());
}

Json mean_of(const Results& results, const char* key) {
  std::vector<Json> values;
  for (const Json& r : results) values.push_back(r.at(key));
  return values.empty() ? Json() : mean_values(values);
}

/// The larger of two numbers, key by key.
void widen(Json& to, const Json& from) {
  for (const auto& [name, value] : from.items()) {
    if (value.is_object()) {
      widen(to[name], value);
    } else if (to_double(value) > to_double(to[name])) {
      to[name] = value;
    }
  }
}

Json max_of(const Results& results, const char* key) {
  if (results.empty()) return nullptr;
  Json out = results.front().at(key);
  for (const Json& r : results) widen(out, r.at(key));
  return out;
}

/// The baseline's bytes out of its busiest node over the variant's, by link class.
Json reduction_json(const hierarchy::Topology& topology, const Json& traffic,
                    const Json& base) {
  Json out = Json::object();
  for (int i = 0; i < topology.levels(); ++i) {
    const std::string& link = topology.level(i).name;
    out[link] = nullptr;
    if (!traffic.is_object() || !base.is_object()) continue;
    const double mine = to_double(traffic[link]["bytes_out_max_node"]);
    const double theirs = to_double(base[link]["bytes_out_max_node"]);
    if (mine > 0 && theirs > 0) out[link] = theirs / mine;
  }
  return out;
}

Json variant_json(const RunConfig& run, const VariantConfig& v, const std::vector<JobEnd>& jobs,
                  const Results& baseline) {
  const Results results = finished(jobs);
  const Json traffic = mean_of(results, "traffic_per_step");
  const Json routes = results.empty() ? Json::array() : results[0].at("routes");
  const Json fallbacks = results.empty() ? Json::array() : results[0].at("fallbacks");
  return {{"name", v.name},
          {"baseline", v.baseline},
          {"compared_with", v.compared_with},
          {"axes", parse_json(v.axes, "axes")},
          {"stage", v.engine.policy.stage},
          {"scheme", v.engine.policy.scheme},
          {"all_reduce", v.engine.policy.all_reduce},
          {"status", variant_status(jobs)},
          {"codecs", {{"weights", v.weight_codec}, {"gradients", v.gradient_codecs}}},
          {"algorithm", hierarchy::name(v.engine.algorithm)},
          {"secondary", v.secondary},
          {"steps", v.steps},
          {"seeds", seeds_json(jobs)},
          {"loss", loss_json(results, baseline)},
          {"traffic_per_step", traffic},
          {"traffic_reduction",
           reduction_json(run.topology, traffic, mean_of(baseline, "traffic_per_step"))},
          {"sent_per_rank", mean_of(results, "sent_per_rank")},
          {"volume", mean_of(results, "volume")},
          {"memory_per_rank", max_of(results, "memory_per_rank")},
          {"collectives_per_step", mean_of(results, "collectives_per_step")},
          {"gradient_error", mean_of(results, "gradient_error")},
          {"time_per_step_s", mean_of(results, "time_per_step_s")},
          {"time_model_s", mean_of(results, "time_model_s")},
          {"ignored_keys", v.ignored_keys},
          {"fallbacks", fallbacks},
          {"routes", routes}};
}

/// Adds "verdict" to each variant, null to the baselines. Those compared with one
/// baseline are one family (Holm).
void add_verdicts(const RunConfig& run, Json& variants) {
  for (Json& v : variants) v["verdict"] = nullptr;
  for (std::size_t b = 0; b < run.variants.size(); ++b) {
    if (!run.variants[b].baseline) continue;
    std::vector<std::size_t> family;
    std::vector<Losses> others;
    for (std::size_t v = 0; v < run.variants.size(); ++v) {
      const VariantConfig& other = run.variants[v];
      if (other.baseline || other.compared_with != run.variants[b].name) continue;
      family.push_back(v);
      others.push_back(losses_of(variants[v]["seeds"]));
    }
    if (family.empty()) continue;
    const auto found =
        compare_variants(losses_of(variants[b]["seeds"]), others, run.declared, run.seeds);
    for (std::size_t i = 0; i < family.size(); ++i) {
      variants[family[i]]["verdict"] = verdict_json(found.at(i), run.declared);
    }
  }
}

}  // namespace

Json make_summary(const RunConfig& run, const zero::Dataset& data,
                  const std::vector<std::vector<JobEnd>>& jobs) {
  Json levels = Json::array();
  for (int i = 0; i < run.topology.levels(); ++i) {
    levels.push_back(
        {{"name", run.topology.level(i).name}, {"size", run.topology.level(i).fan_out}});
  }
  std::map<std::string, Results> baselines;
  for (std::size_t v = 0; v < run.variants.size(); ++v) {
    if (run.variants[v].baseline) baselines[run.variants[v].name] = finished(jobs.at(v));
  }
  Json variants = Json::array();
  for (std::size_t v = 0; v < run.variants.size(); ++v) {
    variants.push_back(variant_json(run, run.variants[v], jobs.at(v),
                                    baselines[run.variants[v].compared_with]));
  }
  add_verdicts(run, variants);
  return {{"schema", 1},
          {"program", program_info()},
          {"config", {{"name", run.stem}, {"hash", run.hash}}},
          {"dataset",
           {{"name", data.name}, {"sha256", data.sha256}, {"tokens", data.bytes.size()}}},
          {"model", {{"parameters", run.variants[0].model.parameters()}}},
          {"cluster", {{"ranks", run.topology.ranks()}, {"levels", levels}}},
          {"comparison", declaration_json(run.declared, run.seeds)},
          {"variants", variants}};
}

}  // namespace zeropp::experiments
