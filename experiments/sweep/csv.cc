#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "experiments/sweep/report.h"

namespace zeropp::experiments {
namespace {

/// RFC 4180.
std::string cell(const Json& value) {
  if (value.is_null()) return "";
  std::string text = value.is_string() ? value.get<std::string>() : to_text(value, -1);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string line(const std::vector<Json>& cells) {
  std::string text;
  for (const Json& c : cells) text += (&c == &cells.front() ? "" : ",") + cell(c);
  return text + "\n";
}

}  // namespace

std::string summary_csv(const Json& summary) {
  std::vector<std::string> axes;
  for (const Json& v : summary["variants"]) {
    for (const auto& [axis, value] : v["axes"].items()) {
      if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
    }
  }
  const char* of_seed[] = {"seed",           "status",       "final_train_loss",
                           "final_val_loss", "state_sha256", "losses_sha256",
                           "skipped_steps"};
  std::vector<Json> header = {"variant", "baseline", "compared_with"};
  for (const std::string& axis : axes) header.emplace_back(axis);
  for (const char* key : of_seed) header.emplace_back(key);
  for (const Json& level : summary["cluster"]["levels"]) {
    header.emplace_back(level["name"].get<std::string>() + "_bytes_out_max_node");
  }
  header.emplace_back("model_state_bytes");
  std::string text = line(header);
  for (const Json& v : summary["variants"]) {
    for (const Json& seed : v["seeds"]) {
      std::vector<Json> row = {v["name"], v["baseline"], v["compared_with"]};
      for (const std::string& axis : axes) row.push_back(v["axes"].value(axis, Json()));
      for (const char* key : of_seed) row.push_back(seed.value(key, Json()));
      const bool known = v["traffic_per_step"].is_object();
      for (const Json& level : summary["cluster"]["levels"]) {
        row.push_back(
            known
                ? v["traffic_per_step"][level["name"].get<std::string>()]["bytes_out_max_node"]
                : Json());
      }
      row.push_back(known ? v["memory_per_rank"]["model_state_bytes"] : Json());
      text += line(row);
    }
  }
  return text;
}

}  // namespace zeropp::experiments
