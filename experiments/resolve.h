#pragma once

#include <string>
#include <vector>

#include "experiments/key_table.h"
#include "experiments/run_config.h"

namespace zeropp::experiments {

/// The "cluster" object of a config as a topology.
hierarchy::Topology resolve_topology(const ConfigView& config);
/// Seeds as a list. UsageError: empty, repeated, negative.
std::vector<std::uint64_t> resolve_seeds(const ConfigView& config);
/// One variant's keys (checked by check_keys) on a topology. Fills everything but name,
/// baseline and ignored_keys.
VariantConfig resolve_variant(const Json& config, const hierarchy::Topology& topology);

/// The resolved config of a variant as JSON text.
std::string resolved_json(const Json& config, const VariantConfig& variant,
                          const hierarchy::Topology& topology);

/// Refuses a name (of a variant, whose folder has it, or of a level) that is not letters,
/// digits and + - _ . = , or that a run's own file has.
void check_name(const std::string& name, const std::string& where);

/// The same error with more words in its area.
[[noreturn]] void rethrow_in(const std::string& where, const std::string& what);

/// DeepSpeed's "tensorboard" keys.
void resolve_tensorboard(const ConfigView& c, VariantConfig& v);

}  // namespace zeropp::experiments
