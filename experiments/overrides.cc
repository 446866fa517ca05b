// "key=value" on the command line, and the merging of variants.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "experiments/key_table.h"
#include "experiments/sweep/sweep.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

std::string full_path(const std::string& typed) {
  std::string path = find_full_path(typed);
  if (path.empty()) throw_unknown_key(typed);
  return path;
}

Json parse_value(const std::string& text) {
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return text;
  return value.is_structured() ? parse_json(text, "override") : value;
}

}  // namespace

std::string find_full_path(const std::string& typed) {
  // The short forms are tried in a fixed order.
  for (const char* prefix :
       {"", "zeropp.", "zeropp.cluster.", "zero_optimization.", "zeropp.model."}) {
    std::string path = prefix + typed;
    if (find_key(path) != nullptr) return path;
  }
  return "";
}

Json& at_path(Json& root, std::string_view path) {
  Json* value = &root;
  while (!path.empty()) {
    const auto dot = path.find('.');
    const std::string key(path.substr(0, dot));
    path.remove_prefix(dot == std::string_view::npos ? path.size() : dot + 1);
    if (!value->is_object()) *value = Json::object();
    value = &(*value)[key];
  }
  return *value;
}

void deep_merge(Json& base, const Json& patch) {
  if (!base.is_object() || !patch.is_object()) {
    base = patch;
    return;
  }
  for (const auto& [key, value] : patch.items()) deep_merge(base[key], value);
}

std::vector<std::string> apply_overrides(Json& config, std::span<const std::string> overrides,
                                         std::vector<SweepAxis>* axes) {
  if (!config.is_object()) throw UsageError("config", "one JSON object", to_text(config, -1));
  std::vector<std::string> paths;
  for (const std::string& text : overrides) {
    const std::size_t start = text.starts_with("--") ? 2 : 0;
    const std::size_t equal = text.find('=');
    if (equal == std::string::npos || equal == start) {
      throw UsageError("override", "key=value", "'" + text + "'");
    }
    std::string path = full_path(text.substr(start, equal - start));
    const std::string written = text.substr(equal + 1);
    Json value = parse_value(written);
    std::vector<Json> values;
    if (value.is_string()) values = sweep_values(written);
    const bool list =
        values.size() > 1 || written.starts_with("choice(") || written.starts_with("range(");
    if (list && path == "zeropp.seeds") {
      value = values;  // An axis that every variant has.
    } else if (list && axes != nullptr) {
      axes->push_back({std::move(path), std::move(values)});
      continue;
    }
    at_path(config, path) = std::move(value);
    paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace zeropp::experiments
