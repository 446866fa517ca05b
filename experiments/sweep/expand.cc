#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/key_table.h"
#include "experiments/sweep/sweep.h"
#include "quant/error.h"
#include "zero/data.h"

namespace zeropp::experiments {
namespace {

constexpr std::size_t kMostVariants = 10'000;
constexpr std::size_t kLongestName = 80;  // check_name's.

[[noreturn]] void refuse(const std::string& expected, const std::string& found) {
  throw UsageError("zeropp.sweep", expected, found);
}

/// Axes that move together: a grid's alone, a zip's side by side.
struct Bundle {
  std::vector<SweepAxis> axes;
  std::size_t size() const { return axes.front().values.size(); }
};

struct Template {
  std::string path;
  std::string text;
};

struct Sweep {
  std::vector<Bundle> bundles;
  std::vector<Template> templates;
  Json exclude = Json::array();
  Json baseline = Json::object();
};

using Point = std::vector<std::pair<std::string, Json>>;

/// "sweep"'s axis by its name in full.
std::string axis_name(const std::string& typed, const std::vector<Template>& templates) {
  for (const Template& t : templates) {
    if (t.text.find("${" + typed + "}") != std::string::npos) return typed;
  }
  std::string path = find_full_path(typed);
  if (path.empty()) refuse("a key, or a name in a template of \"set\"", "'" + typed + "'");
  return path;
}

/// A list, or the text of one; nothing of anything else.
std::vector<Json> axis_values(const Json& values) {
  if (values.is_string()) return sweep_values(values.get<std::string>());
  if (!values.is_array()) return {};
  return {values.begin(), values.end()};
}

SweepAxis read_axis(const std::string& typed, const Json& values,
                    const std::vector<Template>& templates) {
  SweepAxis axis{.name = axis_name(typed, templates), .values = axis_values(values)};
  if (axis.values.empty()) {
    refuse(fmt::format("'{}' to be a list of values or the text of one", typed),
           to_text(values, -1));
  }
  for (std::size_t i = 0; i < axis.values.size(); ++i) {
    if (std::find(axis.values.begin(), axis.values.begin() + static_cast<std::ptrdiff_t>(i),
                  axis.values[i]) != axis.values.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse(fmt::format("'{}' to take each value once", typed), to_text(axis.values[i], -1));
    }
  }
  return axis;
}

Json named_axes(const Json& object, const std::vector<Template>& templates) {
  if (!object.is_object()) refuse("axes with values", to_text(object, -1));
  Json out = Json::object();
  for (const auto& [key, value] : object.items()) out[axis_name(key, templates)] = value;
  return out;
}

void read_zip(const Json& zip, Sweep& sweep) {
  for (const Json& item : zip.is_array() ? zip : Json::array({zip})) {
    if (!item.is_object() || item.empty()) refuse("zip to hold axes", to_text(item, -1));
    Bundle bundle;
    for (const auto& [key, values] : item.items()) {
      // Side by side a value may come again, so not read_axis.
      bundle.axes.push_back(
          {.name = axis_name(key, sweep.templates), .values = axis_values(values)});
    }
    for (const SweepAxis& axis : bundle.axes) {
      if (axis.values.empty() || axis.values.size() != bundle.size()) {
        refuse(
            "lists of one length in a zip",
            fmt::format("{} of '{}' beside {}", axis.values.size(), axis.name, bundle.size()));
      }
    }
    sweep.bundles.push_back(std::move(bundle));
  }
}

Sweep read_sweep(const Json* json, const std::vector<SweepAxis>& command_line) {
  Sweep sweep;
  const Json empty = Json::object();
  if (json == nullptr) json = &empty;
  if (!json->is_object()) refuse("an object", to_text(*json, -1));
  for (const auto& [key, value] : json->items()) {
    if (is_comment_key(key)) continue;
    const std::set<std::string> known = {"grid", "zip", "set", "exclude", "baseline"};
    if (!known.contains(key)) refuse("grid, zip, set, exclude or baseline", "'" + key + "'");
  }
  const Json set = json->value("set", empty);
  if (!set.is_object()) refuse("set to hold keys with templates", to_text(set, -1));
  for (const auto& [key, value] : set.items()) {
    const std::string path = find_full_path(key);
    if (path.empty()) throw_unknown_key(key);
    if (!value.is_string() && !value.is_array()) {
      refuse(fmt::format("set.{} to be text", key), to_text(value, -1));
    }
    sweep.templates.push_back({path, to_text(value, -1)});
  }
  const Json grid = json->value("grid", empty);
  if (!grid.is_object()) refuse("grid to hold axes", to_text(grid, -1));
  for (const auto& [key, value] : grid.items()) {
    sweep.bundles.push_back({{read_axis(key, value, sweep.templates)}});
  }
  if (json->contains("zip")) read_zip((*json)["zip"], sweep);
  for (const Json& item : json->value("exclude", Json::array())) {
    sweep.exclude.push_back(named_axes(item, sweep.templates));
  }
  sweep.baseline = named_axes(json->value("baseline", empty), sweep.templates);
  for (const SweepAxis& axis : command_line) {  // Takes the place of the file's.
    const auto same = [&](const Bundle& b) {
      return b.axes.size() == 1 && b.axes[0].name == axis.name;
    };
    const auto found = std::find_if(sweep.bundles.begin(), sweep.bundles.end(), same);
    if (found == sweep.bundles.end()) {
      sweep.bundles.push_back({{axis}});
    } else {
      *found = {{axis}};
    }
  }
  return sweep;
}

void check_axes(const Sweep& sweep) {
  std::set<std::string> names;
  for (const Bundle& bundle : sweep.bundles) {
    for (const SweepAxis& axis : bundle.axes) {
      if (!names.insert(axis.name).second) refuse("an axis once", "'" + axis.name + "'");
    }
  }
  const auto known = [&](const Json& object, const char* where) {
    for (const auto& [name, value] : object.items()) {
      if (!names.contains(name)) {
        refuse(fmt::format("{} to name axes", where), "'" + name + "'");
      }
    }
  };
  for (const Json& item : sweep.exclude) known(item, "exclude");
  known(sweep.baseline, "baseline");
  if (names.empty()) refuse("at least one axis in grid or zip", "none");
}

std::vector<std::string> keys_of(const SweepAxis& axis, const Sweep& sweep) {
  std::vector<std::string> keys;
  for (const Template& t : sweep.templates) {
    if (t.text.find("${" + axis.name + "}") != std::string::npos) keys.push_back(t.path);
  }
  if (keys.empty()) keys.push_back(axis.name);
  return keys;
}

bool takes(const VariantPatch& variant, const Bundle& bundle, const Sweep& sweep) {
  for (const SweepAxis& axis : bundle.axes) {
    for (const std::string& key : keys_of(axis, sweep)) {
      if (ConfigView(variant.config).has(key)) return false;
    }
  }
  return true;
}

std::vector<Point> points_of(const std::vector<const Bundle*>& bundles) {
  std::vector<Point> points(1);
  for (const Bundle* bundle : bundles) {
    std::vector<Point> longer;
    if (points.size() * bundle->size() > kMostVariants) {
      refuse(fmt::format("up to {} variants", kMostVariants), "more");
    }
    for (const Point& point : points) {
      for (std::size_t i = 0; i < bundle->size(); ++i) {
        longer.push_back(point);
        for (const SweepAxis& axis : bundle->axes) {
          longer.back().emplace_back(axis.name, axis.values[i]);
        }
      }
    }
    points = std::move(longer);
  }
  return points;
}

bool matches(const Point& point, const Json& wanted) {
  for (const auto& [axis, value] : wanted.items()) {
    bool found = false;
    for (const auto& [name, mine] : point) {
      if (name != axis) continue;
      found = value == mine ||
              (value.is_array() && std::find(value.begin(), value.end(), mine) != value.end());
    }
    if (!found) return false;
  }
  return true;
}

std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : to_text(value, -1);
}

std::string name_of(const std::string& variant, const Point& point, bool named) {
  std::string name = named ? variant : "";
  for (const auto& [axis, value] : point) {
    const auto dot = axis.rfind('.');
    name += (name.empty() ? "" : ",") + axis.substr(dot == std::string::npos ? 0 : dot + 1) +
            "=" + plain(value);
  }
  const std::string whole = name;
  for (char& c : name) {
    const bool good = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                      std::string_view("+-_.=,").find(c) != std::string::npos;
    if (!good) c = '-';
  }
  if (name.size() > kLongestName) {
    name = name.substr(0, kLongestName - 9) + "-" +
           zero::sha256_hex(whole.data(), whole.size()).substr(0, 8);
  }
  return name;
}

Json filled(const Template& t, const Point& point) {
  std::string text = t.text;
  for (const auto& [axis, value] : point) {
    const std::string hole = "${" + axis + "}";
    for (auto at = text.find(hole); at != std::string::npos; at = text.find(hole, at)) {
      const std::string put = plain(value);
      text.replace(at, hole.size(), put);
      at += put.size();
    }
  }
  if (text.find("${") != std::string::npos) {
    refuse(fmt::format("an axis for every name in set.{}", t.path), text);
  }
  return parse_json(text, "zeropp.sweep.set");
}

void apply(const Sweep& sweep, const Point& point, VariantPatch& patch) {
  const VariantPatch before = patch;
  patch.axes = Json::object();
  for (const auto& [axis, value] : point) {
    patch.axes[axis] = value;
    const std::string hole = "${" + axis + "}";
    const bool parameter =
        std::any_of(sweep.templates.begin(), sweep.templates.end(),
                    [&](const Template& t) { return t.text.find(hole) != std::string::npos; });
    if (!parameter) at_path(patch.config, axis) = value;
  }
  for (const Template& t : sweep.templates) {
    if (!ConfigView(before.config).has(t.path))
      at_path(patch.config, t.path) = filled(t, point);
  }
}

/// Gives every patch the baseline that agrees with it on the baseline's axes but `left_out`.
void match_baselines(std::vector<VariantPatch>& patches, const Json& left_out) {
  for (VariantPatch& patch : patches) {
    std::vector<std::string> found;
    for (const VariantPatch& base : patches) {
      if (!base.baseline) continue;
      bool agrees = true;
      for (const auto& [axis, value] : base.axes.items()) {
        if (left_out.contains(axis)) continue;
        agrees = agrees && patch.axes.contains(axis) && patch.axes[axis] == value;
      }
      if (agrees) found.push_back(base.name);
    }
    if (found.size() != 1) {
      refuse(
          fmt::format("one baseline that agrees with '{}' on the baseline's axes", patch.name),
          std::to_string(found.size()));
    }
    patch.compared_with = found.front();
  }
}

void check_names(const std::vector<VariantPatch>& patches) {
  std::set<std::string> names;
  for (const VariantPatch& patch : patches) {
    if (!names.insert(patch.name).second) {
      refuse("values that give different names", "'" + patch.name + "' twice");
    }
  }
}

}  // namespace

std::vector<VariantPatch> expand_sweep(const Json& config,
                                       const std::vector<SweepAxis>& command_line,
                                       const std::vector<VariantPatch>& variants, bool named) {
  Sweep sweep = read_sweep(ConfigView(config).find("zeropp.sweep"), command_line);
  check_axes(sweep);
  if (named && !sweep.baseline.empty()) {
    refuse("no baseline, which a variant is", to_text(sweep.baseline, -1));
  }
  if (!named && sweep.baseline.empty()) {
    for (const Bundle& bundle : sweep.bundles) {
      for (const SweepAxis& axis : bundle.axes) sweep.baseline[axis.name] = axis.values[0];
    }
  }
  std::set<const Bundle*> taken;
  std::vector<VariantPatch> patches;
  std::size_t baselines = 0;
  for (const VariantPatch& variant : variants) {
    std::vector<const Bundle*> bundles;
    for (const Bundle& bundle : sweep.bundles) {
      if (!takes(variant, bundle, sweep)) continue;
      bundles.push_back(&bundle);
      taken.insert(&bundle);
    }
    for (const Point& point : points_of(bundles)) {
      const bool out = std::any_of(sweep.exclude.begin(), sweep.exclude.end(),
                                   [&](const Json& item) { return matches(point, item); });
      if (out) continue;
      VariantPatch patch = variant;
      apply(sweep, point, patch);
      patch.name = name_of(variant.name, point, named);
      patch.baseline = named ? variant.baseline : matches(point, sweep.baseline);
      baselines += patch.baseline ? 1 : 0;
      patches.push_back(std::move(patch));
      if (patches.size() > kMostVariants) {
        refuse(fmt::format("up to {} variants", kMostVariants), "more");
      }
    }
  }
  for (const Bundle& bundle : sweep.bundles) {
    if (!taken.contains(&bundle)) {
      refuse("an axis whose key some variant does not set itself",
             "'" + bundle.axes[0].name + "'");
    }
  }
  if (baselines == 0) refuse("a baseline that is not excluded", "none");
  Json picked = Json::object();  // Axes along which "baseline" picks a value, and their zips.
  for (const Bundle& bundle : sweep.bundles) {
    const bool named_here =
        std::any_of(bundle.axes.begin(), bundle.axes.end(),
                    [&](const SweepAxis& axis) { return sweep.baseline.contains(axis.name); });
    for (const SweepAxis& axis : bundle.axes) {
      if (named_here) picked[axis.name] = true;
    }
  }
  match_baselines(patches, picked);
  check_names(patches);
  return patches;
}

}  // namespace zeropp::experiments
