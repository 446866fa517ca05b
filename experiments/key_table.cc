#include "experiments/key_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "quant/error.h"

namespace zeropp::experiments {
namespace {

bool is_unset(const Json& value) { return value.is_null() || value == "auto"; }

std::string_view parent_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view{} : path.substr(0, dot);
}
std::string_view leaf_of(std::string_view path) { return path.substr(path.rfind('.') + 1); }

template <typename F>
void for_each_key(const F& f) {
  for (const KeySpec& spec : deepspeed_keys()) f(spec);
  for (const KeySpec& spec : zeropp_keys()) f(spec);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// The known key nearest to an unknown one: the same name elsewhere, else a spelling near it.
std::string nearest_key(std::string_view path) {
  const std::string_view leaf = leaf_of(path);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, leaf.size() / 3) + 1;
  for_each_key([&](const KeySpec& spec) {
    if (spec.status == KeyStatus::kRefused) return;
    std::size_t distance = edit_distance(leaf, leaf_of(spec.path));
    if (distance > 0 && parent_of(spec.path) != parent_of(path)) ++distance;
    if (distance < best_distance) {
      best_distance = distance;
      best = spec.path;
    }
  });
  return best;
}

/// A whole number that a double holds exactly.
bool is_integral(const Json& value) {
  if (value.is_number_integer()) return true;
  if (!value.is_number_float()) return false;
  const double x = value.get<double>();
  return std::isfinite(x) && std::floor(x) == x && std::fabs(x) <= 9007199254740992.0;
}

bool has_type(const Json& value, unsigned types) {
  if (value.is_boolean()) return (types & kBool) != 0;
  if (value.is_number()) {
    return (types & kNumber) != 0 || ((types & kInt) != 0 && is_integral(value));
  }
  if (value.is_string()) return (types & kString) != 0;
  if (value.is_array()) return (types & kList) != 0;
  return (types & (kObject | kOpen)) != 0;
}

std::string type_names(unsigned types) {
  std::vector<std::string_view> names;
  if ((types & kBool) != 0) names.emplace_back("true or false");
  if ((types & kNumber) != 0) {
    names.emplace_back("a number");
  } else if ((types & kInt) != 0) {
    names.emplace_back("an integer");
  }
  if ((types & kString) != 0) names.emplace_back("a string");
  if ((types & kList) != 0) names.emplace_back("a list");
  if ((types & (kObject | kOpen)) != 0) names.emplace_back("an object");
  return fmt::format("{}", fmt::join(names, " or "));
}

std::string short_text(const Json& value) {
  std::string text = to_text(value, -1);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

bool is_harmless(const KeySpec& spec, const Json& value) {
  if (spec.fallback.empty()) return false;
  const Json harmless = Json::parse(spec.fallback);
  if (!harmless.is_object()) return harmless == value;
  if (!value.is_object()) return false;
  // {"enabled": false} is also what a section without "enabled" means; {"device": "none"} too.
  for (const auto& [key, expected] : harmless.items()) {
    if (value.contains(key) && !is_unset(value[key]) && value[key] != expected) return false;
  }
  return true;
}

void check_range(const KeySpec& spec, const Json& value) {
  const auto fail = [&](const std::string& expected) {
    throw UsageError("config", fmt::format("{} to be {}", spec.path, expected),
                     short_text(value));
  };
  if (value.is_number() && !value.is_boolean()) {
    const double x = value.get<double>();
    if (x >= spec.min && x <= spec.max) return;
    if (std::isinf(spec.max)) fail(fmt::format("at least {}", spec.min));
    fail(fmt::format("in {}..{}", spec.min, spec.max));
  }
  if (value.is_string() && !spec.allowed.empty()) {
    const std::string text = "|" + std::string(spec.allowed) + "|";
    if (text.find("|" + value.get<std::string>() + "|") != std::string::npos) return;
    std::string names(spec.allowed);
    for (auto bar = names.find('|'); bar != std::string::npos; bar = names.find('|', bar)) {
      names.replace(bar, 1, ", ");
    }
    fail("one of " + names);
  }
}

void check_object(const Json& object, const std::string& prefix,
                  std::vector<std::string>& ignored) {
  for (const auto& [key, value] : object.items()) {
    const std::string path = prefix.empty() ? key : prefix + "." + key;
    if (is_comment_key(key)) continue;
    const KeySpec* spec = find_key(path);
    if (spec == nullptr) throw_unknown_key(path);
    if (is_unset(value)) continue;
    if (spec->status == KeyStatus::kRefused) {
      if (is_harmless(*spec, value)) continue;
      throw UsageError("config",
                       spec->fallback.empty()
                           ? fmt::format("no {} ({})", path, spec->note)
                           : fmt::format("{} to be {} ({})", path, spec->fallback, spec->note),
                       short_text(value));
    }
    if (!has_type(value, spec->types)) {
      throw UsageError("config", fmt::format("{} to be {}", path, type_names(spec->types)),
                       short_text(value));
    }
    check_range(*spec, value);
    if (spec->status == KeyStatus::kIgnored) ignored.push_back(path);
    if (value.is_object() && (spec->types & kObject) != 0) check_object(value, path, ignored);
  }
}

}  // namespace

const KeySpec* find_key(std::string_view path) {
  const KeySpec* found = nullptr;
  for_each_key([&](const KeySpec& spec) {
    if (spec.path == path) found = &spec;
  });
  return found;
}

bool is_comment_key(std::string_view key) {
  if (key.starts_with('_')) key.remove_prefix(1);
  return key == "comment" || key.starts_with("comment_");
}

void throw_unknown_key(std::string_view path) {
  const std::string_view parent = parent_of(path);
  const std::string nearest = nearest_key(path);
  std::string expected =
      parent.empty() ? "a known key" : fmt::format("a known key of {}", parent);
  if (!nearest.empty()) {
    expected += fmt::format(" (did you mean {}?)", nearest);
  } else {
    std::vector<std::string_view> names;
    for_each_key([&](const KeySpec& spec) {
      if (spec.status == KeyStatus::kHonoured && parent_of(spec.path) == parent) {
        names.push_back(leaf_of(spec.path));
      }
    });
    if (!names.empty()) expected += fmt::format(" ({})", fmt::join(names, ", "));
  }
  throw UsageError("config", expected, fmt::format("'{}'", path));
}

std::vector<std::string> check_keys(const Json& config) {
  if (!config.is_object()) throw UsageError("config", "one JSON object", short_text(config));
  std::vector<std::string> ignored;
  check_object(config, "", ignored);
  return ignored;
}

const Json* ConfigView::find(std::string_view path) const {
  const Json* value = &root_;
  while (!path.empty()) {
    const auto dot = path.find('.');
    const std::string key(path.substr(0, dot));
    path.remove_prefix(dot == std::string_view::npos ? path.size() : dot + 1);
    if (!value->is_object()) return nullptr;
    const auto it = value->find(key);
    if (it == value->end() || is_unset(*it)) return nullptr;
    value = &*it;
  }
  return value;
}

Json ConfigView::get(std::string_view path) const {
  if (const Json* value = find(path)) return *value;
  const KeySpec* spec = find_key(path);
  if (spec == nullptr || spec->fallback.empty()) return nullptr;
  return Json::parse(spec->fallback);
}

bool ConfigView::get_bool(std::string_view path) const { return get(path).get<bool>(); }
std::int64_t ConfigView::get_int(std::string_view path) const { return as_integer(get(path)); }
double ConfigView::get_double(std::string_view path) const { return get(path).get<double>(); }
std::string ConfigView::get_string(std::string_view path) const {
  return get(path).get<std::string>();
}

std::int64_t as_integer(const Json& value) {
  return value.is_number_float() ? static_cast<std::int64_t>(value.get<double>())
                                 : value.get<std::int64_t>();
}

}  // namespace zeropp::experiments
