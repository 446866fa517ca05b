#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/verdict/statistics.h"

namespace zeropp::experiments {

/// What is decided before a run: zeropp.compare of the config.
struct Declaration {
  double margin = 0.01;  ///< Nats a token: a loss that is worse by less does not matter.
  double alpha = 0.05;
};

/// Equivalence needs both bounds of the 90 % interval (alpha = 0.05) inside the margin, not
/// worse than the margin the upper one, worse the lower one beyond it.
enum class Verdict : std::uint8_t {
  kEquivalent,
  kNonInferior,
  kWorse,
  kInconclusive,
  kDiverged,  ///< A seed of it failed or ended in a loss that is no number.
};
std::string_view name(Verdict v);  ///< "EQUIVALENT", "NON-INFERIOR", ...

/// Final validation losses by seed; no value: the seed failed.
using Losses = std::map<std::uint64_t, std::optional<double>>;

struct Comparison {
  Verdict verdict = Verdict::kInconclusive;
  Paired difference;                           ///< Over the seeds that both have.
  std::optional<Interval> interval;            ///< 1 - 2 alpha: what the verdict looks at.
  std::optional<Interval> interval_95;         ///< The plain one.
  std::vector<std::uint64_t> seeds, unpaired;  ///< Compared; of one side alone.
  bool detectable = false;  ///< interval_95 leaves 0 out, whatever the verdict.
  double sign_flip = 1;     ///< p of the permutation test of no difference.
  double p_non_inferior = 1, p_equivalent = 1, p_worse = 1;  ///< Adjusted over the family.
  std::size_t seeds_needed = 0;  ///< Of an inconclusive one, at this deviation; 0: unknown.
  std::size_t failures = 0;
  std::string reason;  ///< One sentence.
};

/// Compares each variant with the baseline; claims of equivalence and non-inferiority are
/// corrected for their number (Holm). Steps are never samples: one seed decides nothing.
std::vector<Comparison> compare_variants(const Losses& baseline,
                                         const std::vector<Losses>& variants,
                                         const Declaration& declared);

}  // namespace zeropp::experiments
