#pragma once

#include <cstdint>
#include <vector>

#include "experiments/json_io.h"
#include "experiments/verdict/verdict.h"

namespace zeropp::experiments {

/// Of "seeds" of a variant in summary.json.
Losses losses_of(const Json& seeds);

/// "verdict" of a variant in summary.json, and of a row of `zeropp compare --json`.
Json verdict_json(const Comparison& c, const Declaration& declared);
/// "comparison" of summary.json: what was decided beforehand, and its SHA-256.
Json declaration_json(const Declaration& declared, const std::vector<std::uint64_t>& seeds);

}  // namespace zeropp::experiments
