#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/json_io.h"

namespace zeropp::experiments {

/// A variant as written: its changes of the config, without name and flag.
struct VariantPatch {
  std::string name = "main";
  bool baseline = true;
  Json config;
  std::string compared_with{};  ///< Name of its baseline.
  Json axes{};                  ///< Axis: value, in order; of sweeps alone.
};

/// A key or a parameter of templates, with the values it takes.
struct SweepAxis {
  std::string name;  ///< Dotted path in full, or the parameter's name.
  std::vector<Json> values;
};

/// The pieces of "a,b", "choice(a,b)" or "range([start,]stop[,step])" (stop is left out), each
/// JSON or else a string; one piece where the text is no list. A comma inside brackets or
/// quotes or before "word=" (of a codec's spec) does not part. UsageError: a range of nothing.
std::vector<Json> sweep_values(const std::string& text);

/// Full path of a key as typed, "" where there is none (overrides.cc).
std::string find_full_path(const std::string& typed);

/// Crosses the variants with the axes of zeropp.sweep and of the command line:
///
///   {"grid": {AXIS: VALUES, ...},          every combination
///    "zip": [{AXIS: VALUES, ...}, ...],    as long lists side by side, each a single axis
///    "set": {KEY: "int${bits}:block=${block}"},
///    "exclude": [{AXIS: value or list}, ...],
///    "baseline": {AXIS: value}}
///
/// VALUES is a list or the text of sweep_values; AXIS a key, or a parameter of a template in
/// "set". A variant that sets an axis' key itself does not have the axis. With variants, those
/// of the baseline are baselines, and each of the others is compared with the one that agrees
/// on the baseline's axes. Without, "baseline" picks them (default: every axis' first value).
/// UsageError names the axis.
std::vector<VariantPatch> expand_sweep(const Json& config,
                                       const std::vector<SweepAxis>& command_line,
                                       const std::vector<VariantPatch>& variants, bool named);

}  // namespace zeropp::experiments
