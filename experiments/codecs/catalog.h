#pragma once

#include <string>
#include <vector>

#include "experiments/json_io.h"
#include "quant/codec.h"

namespace zeropp::experiments {

/// Every example of the registry, in its order; only those of the named entries unless empty.
std::vector<std::string> example_specs(const std::vector<std::string>& entries = {});

/// Name, help, parameters and, for every example, the traits: for people and for scripts.
std::string catalog_text();
Json catalog_json();

/// "poison block" or "preserve".
std::string nan_policy_name(quant::NanPolicy policy);

}  // namespace zeropp::experiments
