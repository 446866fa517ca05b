// "key=value" on the command line, and the merging of variants.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "experiments/key_table.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

/// Full path of a key as typed. The short forms are tried in a fixed order.
std::string full_path(const std::string& typed) {
  for (const char* prefix :
       {"", "zeropp.", "zeropp.cluster.", "zero_optimization.", "zeropp.model."}) {
    std::string path = prefix + typed;
    if (find_key(path) != nullptr) return path;
  }
  throw_unknown_key(typed);
}

Json parse_value(const std::string& text) {
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return text;
  return value.is_structured() ? parse_json(text, "override") : value;
}

}  // namespace

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

std::vector<std::string> apply_overrides(Json& config, std::span<const std::string> overrides) {
  if (!config.is_object()) throw UsageError("config", "one JSON object", to_text(config, -1));
  std::vector<std::string> paths;
  for (const std::string& text : overrides) {
    const std::size_t start = text.starts_with("--") ? 2 : 0;
    const std::size_t equal = text.find('=');
    if (equal == std::string::npos || equal == start) {
      throw UsageError("override", "key=value", "'" + text + "'");
    }
    std::string path = full_path(text.substr(start, equal - start));
    at_path(config, path) = parse_value(text.substr(equal + 1));
    paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace zeropp::experiments
