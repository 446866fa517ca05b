#pragma once

// The promises of quant/codec.h as checks that any codec can be run through: the tests run them
// over the registry, `zeropp codecs --check` over what a plug-in adds. No test library needed.

#include <string>
#include <string_view>
#include <vector>

#include "quant/codec.h"

namespace zeropp::quant::contract {

/// How much is tried. kQuick leaves out the longest spans with all but normal numbers.
enum class Effort { kQuick, kFull };

/// A promise that a codec broke.
struct Failure {
  std::string check;  ///< One of check_names().
  std::string found;  ///< Where (dtype, n, input, instruction set) and what.
};

/// The names of the checks, in the order in which they run.
const std::vector<std::string>& check_names();

/// Runs one check; the text of the first thing that breaks it, empty if nothing does. An
/// exception where the contract has none breaks it too. UsageError for an unknown check or a
/// spec that make_codec refuses. Changes the instruction set of the whole process meanwhile.
std::string run_check(std::string_view check, const std::string& spec, Effort effort);

/// All checks; empty if the codec keeps its promises.
std::vector<Failure> check_contract(const std::string& spec, Effort effort = Effort::kFull);

}  // namespace zeropp::quant::contract
