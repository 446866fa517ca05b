#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/json_io.h"

namespace zeropp::experiments {

struct SweepAxis;

/// What becomes of a config key.
enum class KeyStatus : std::uint8_t {
  kHonoured,  ///< Does what its name says.
  kIgnored,   ///< Accepted, no effect here; listed in the results as ignored.
  kRefused,   ///< An error with the reason in `note`, unless the value is harmless.
};

/// JSON types a value may have, combined with |.
enum KeyType : unsigned {
  kBool = 1,
  kInt = 2,  ///< An integer, also written 5e8.
  kNumber = 4,
  kString = 8,
  kList = 16,
  kObject = 32,  ///< Its keys are in the table too.
  kOpen = 64,    ///< An object whose keys nobody checks.
  kAny = 95,     ///< Everything, objects unchecked.
};

/// One row of the key table: the only place that knows names, types, ranges and defaults.
struct KeySpec {
  std::string_view path;  ///< Dotted, from the top of the config.
  KeyStatus status = KeyStatus::kHonoured;
  unsigned types = kAny;
  std::string_view fallback = {};  ///< JSON text; "" = unset. For kRefused: the harmless value.
  std::string_view note = {};      ///< For people: help text, or the reason of a refusal.
  std::string_view allowed = {};   ///< "a|b|c" for strings, or "".
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};

std::span<const KeySpec> deepspeed_keys();  ///< ds_keys.cc.
std::span<const KeySpec> zeropp_keys();     ///< zeropp_keys.cc.
const KeySpec* find_key(std::string_view path);

/// True for keys that hold free text: "comment", "_comment", and names that start so and go on
/// with '_' ("_comment_2").
bool is_comment_key(std::string_view key);

/// Checks every key and value of a config against the table. UsageError names key, value and
/// what is allowed. Returns the ignored keys that are present, in order.
std::vector<std::string> check_keys(const Json& config);

/// "unknown key" error for a dotted path, with the nearest known key.
[[noreturn]] void throw_unknown_key(std::string_view path);

/// Typed reading of a checked config. Null and "auto" are unset; unset keys give the table's
/// default, which must exist for get_*.
class ConfigView {
 public:
  explicit ConfigView(const Json& root) : root_(root) {}
  const Json* find(std::string_view path) const;  ///< Null if unset.
  bool has(std::string_view path) const { return find(path) != nullptr; }
  bool get_bool(std::string_view path) const;
  std::int64_t get_int(std::string_view path) const;
  double get_double(std::string_view path) const;
  std::string get_string(std::string_view path) const;
  Json get(std::string_view path) const;

 private:
  const Json& root_;
};

/// The value at a dotted path, made if absent.
Json& at_path(Json& root, std::string_view path);
std::int64_t as_integer(const Json& value);  ///< 5e8 -> 500000000; the value was checked.

/// Merges `patch` into `base`, objects key by key, anything else replaced.
void deep_merge(Json& base, const Json& patch);

/// Applies "key=value" or "--key=value" with dotted keys; the value is JSON, else a string.
/// Short forms: a key of "zeropp", "zeropp.cluster", "zero_optimization" or "zeropp.model"
/// alone. Returns the full paths. A list of values (sweep_values) becomes one of `axes`, where
/// they are wanted; of seeds, the list.
std::vector<std::string> apply_overrides(Json& config, std::span<const std::string> overrides,
                                         std::vector<SweepAxis>* axes = nullptr);

}  // namespace zeropp::experiments
