#pragma once

#include <iosfwd>
#include <optional>
#include <string>

namespace zeropp::experiments {

/// `zeropp compare A [B]`. A side is a results folder, or FOLDER:VARIANT.
struct CompareOptions {
  std::string a, b;  ///< b empty: all other variants of a against its baseline.
  std::optional<double> margin, alpha;  ///< Else what A's config declared.
  bool json = false;
};

/// Prints identity, verdicts and, apart from them, what holds within single runs. Exit code 0
/// whatever the verdict. UsageError: no such folder, variant, or nothing in common.
int compare_command(const CompareOptions& options, std::ostream& out);

}  // namespace zeropp::experiments
