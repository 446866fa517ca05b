#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "experiments/key_table.h"
#include "experiments/predict.h"
#include "experiments/sweep/report.h"
#include "experiments/text_table.h"
#include "quant/error.h"
#include "zero/gpt.h"

namespace zeropp::experiments {
namespace {

std::uint64_t states_of(const RunConfig& run, const VariantConfig& v, const zero::Model& model,
                        int rank) {
  std::uint64_t bytes = 0;
  for (const zero::TensorSpec& tensor : model.tensors()) {
    bytes +=
        zero::state_bytes(v.engine.policy, v.layout(), tensor.numel, run.topology.ranks(), rank)
            .total();
  }
  return bytes;
}

Json predicted_traffic(const RunConfig& run, const VariantConfig& v, const zero::Model& model) {
  const bool valid = starts_with_secondary(v.engine);
  const StepPrediction step =
      predict_step(run.topology, model, v.engine, {.secondary_valid = valid});
  Json out = Json::object();
  for (int link = 0; link < run.topology.levels(); ++link) {
    hierarchy::Traffic sum;
    for (const auto& rank : step.sent) sum += rank[static_cast<std::size_t>(link)];
    out[run.topology.level(link).name] = sum.bytes.total();
  }
  return out;
}

}  // namespace

Json jobs_json(const RunConfig& run) {
  Json variants = Json::array();
  for (const VariantConfig& v : run.variants) {
    const auto model = zero::make_gpt(v.model);
    variants.push_back({{"name", v.name},
                        {"baseline", v.baseline},
                        {"compared_with", v.compared_with},
                        {"axes", parse_json(v.axes, "axes")},
                        {"seeds", run.seeds},
                        {"steps", v.steps},
                        {"hash", v.hash},
                        {"predicted_bytes_per_step", predicted_traffic(run, v, *model)},
                        {"model_state_bytes_per_rank", states_of(run, v, *model, 0)}});
  }
  return {{"schema", 1},
          {"config", {{"name", run.stem}, {"hash", run.hash}}},
          {"jobs", run.variants.size() * run.seeds.size()},
          {"variants", variants}};
}

std::string jobs_table(const Json& jobs) {
  TextTable table{
      .header = {"variant", "seeds", "steps", "compared with"}, .rows = {}, .left = 1};
  for (const auto& [link, bytes] : jobs["variants"][0]["predicted_bytes_per_step"].items()) {
    table.header.push_back(link + " bytes/step");
  }
  table.header.emplace_back("model states/rank");
  table.header.emplace_back("hash");
  for (const Json& v : jobs["variants"]) {
    std::vector<std::string> row = {
        v["name"], std::to_string(v["seeds"].size()), std::to_string(v["steps"].get<int>()),
        v["baseline"] == true ? "baseline" : v["compared_with"].get<std::string>()};
    for (const auto& [link, bytes] : v["predicted_bytes_per_step"].items()) {
      row.push_back(human_bytes(to_double(bytes)));
    }
    row.push_back(human_bytes(to_double(v["model_state_bytes_per_rank"])));
    row.push_back(v["hash"].get<std::string>().substr(0, 8));
    table.rows.push_back(std::move(row));
  }
  return fmt::format("{}\n{} jobs\n", table.text(), jobs["jobs"].get<std::uint64_t>());
}

std::string keys_text() {
  TextTable table{.header = {"key", "default", "meaning"}, .rows = {}, .left = 3};
  for (const auto keys : {deepspeed_keys(), zeropp_keys()}) {
    for (const KeySpec& key : keys) {
      if ((key.types & kObject) != 0) continue;
      std::string note(key.note);
      if (!key.allowed.empty()) note += (note.empty() ? "" : "; ") + std::string(key.allowed);
      if (key.status == KeyStatus::kIgnored) note = "no effect here";
      if (key.status == KeyStatus::kRefused) note = "refused: " + note;
      table.rows.push_back({std::string(key.path), std::string(key.fallback), note});
    }
  }
  return table.text();
}

std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    std::uint64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return 0;
}

void check_memory(const RunConfig& run, std::uint64_t available) {
  if (available == 0 || run.transport != "virtual") return;
  for (const VariantConfig& v : run.variants) {
    const auto model = zero::make_gpt(v.model);
    std::uint64_t bytes = 0;
    for (int rank = 0; rank < run.topology.ranks(); ++rank) {
      bytes += states_of(run, v, *model, rank);
    }
    if (bytes <= available) continue;
    throw UsageError(
        fmt::format("memory, variant '{}'", v.name),
        fmt::format("model states of {} ranks within the {} available (--any-memory tries)",
                    run.topology.ranks(), human_bytes(static_cast<double>(available))),
        human_bytes(static_cast<double>(bytes)));
  }
}

}  // namespace zeropp::experiments
