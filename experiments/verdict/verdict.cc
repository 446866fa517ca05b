#include "experiments/verdict/verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace zeropp::experiments {
namespace {

bool failed(const std::optional<double>& loss) { return !loss || !std::isfinite(*loss); }

/// Everything but the verdict and the adjustment.
Comparison measure(const Losses& baseline, const Losses& variant, const Declaration& declared) {
  Comparison c;
  std::vector<double> differences;
  for (const auto& [seed, loss] : variant) {
    c.failures += failed(loss) ? 1 : 0;
    const auto base = baseline.find(seed);
    if (base == baseline.end()) {
      c.unpaired.push_back(seed);
    } else if (!failed(loss) && !failed(base->second)) {
      differences.push_back(*loss - *base->second);
      c.seeds.push_back(seed);
    }
  }
  for (const auto& [seed, loss] : baseline) {
    if (!variant.contains(seed)) c.unpaired.push_back(seed);
  }
  std::sort(c.unpaired.begin(), c.unpaired.end());
  c.difference = paired(differences);
  if (differences.size() < 2) return c;
  c.interval = confidence_interval(c.difference, 1 - 2 * declared.alpha);
  c.interval_95 = confidence_interval(c.difference, 0.95);
  c.detectable = c.interval_95->low > 0 || c.interval_95->high < 0;
  c.sign_flip = sign_flip_p(differences);
  c.p_non_inferior = p_below(c.difference, declared.margin);
  c.p_equivalent = std::max(c.p_non_inferior, p_above(c.difference, -declared.margin));
  c.p_worse = p_above(c.difference, declared.margin);
  return c;
}

/// Holm over the variants that have a p value.
void adjust(std::vector<Comparison>& all, double Comparison::*p) {
  std::vector<double> values;
  for (const Comparison& c : all) {
    if (c.interval) values.push_back(c.*p);
  }
  const std::vector<double> adjusted = holm(values);
  std::size_t i = 0;
  for (Comparison& c : all) {
    if (c.interval) c.*p = adjusted[i++];
  }
}

/// Planned seeds that one of the two sides lacks.
std::vector<std::uint64_t> missing(const Losses& a, const Losses& b,
                                   const std::vector<std::uint64_t>& planned) {
  std::vector<std::uint64_t> seeds;
  std::copy_if(planned.begin(), planned.end(), std::back_inserter(seeds),
               [&](std::uint64_t s) { return !a.contains(s) || !b.contains(s); });
  return seeds;
}

void decide(Comparison& c, bool baseline_failed, const std::vector<std::uint64_t>& missing,
            const Declaration& declared) {
  const double alpha = declared.alpha;
  if (c.failures > 0 || baseline_failed) {
    c.verdict = Verdict::kDiverged;
    c.reason = c.failures > 0
                   ? fmt::format("{} of its seeds ended without a finite loss", c.failures)
                   : "a seed of the baseline ended without a finite loss";
  } else if (!missing.empty()) {
    c.reason = fmt::format("planned seeds did not end: {}", fmt::join(missing, ", "));
  } else if (!c.interval) {
    c.reason = fmt::format("{} paired seed{}; a verdict needs two or more", c.seeds.size(),
                           c.seeds.size() == 1 ? "" : "s");
  } else if (c.p_worse < alpha) {
    c.verdict = Verdict::kWorse;
    c.reason =
        fmt::format("the loss is worse by more than the margin of {:g}", declared.margin);
  } else if (c.p_equivalent < alpha) {
    c.verdict = Verdict::kEquivalent;
    c.reason = fmt::format("the difference lies within the margin of {:g}", declared.margin);
  } else if (c.p_non_inferior < alpha) {
    c.verdict = Verdict::kNonInferior;
    c.reason = fmt::format("the loss is not worse by the margin of {:g}", declared.margin);
  } else {
    c.seeds_needed = seeds_needed(c.difference.sd, declared.margin, alpha);
    c.reason = c.seeds_needed > c.seeds.size()
                   ? fmt::format(
                         "{} seeds are too few; about {} would do if there is no "
                         "difference",
                         c.seeds.size(), c.seeds_needed)
                   : "too few seeds for so many variants, or a difference near the margin";
  }
}

}  // namespace

bool is_divergence(std::string_view status, std::string_view message) {
  const auto says = [&](std::string_view text) { return message.find(text) != message.npos; };
  return status == "error" &&
         (says("expected a finite loss") || says("had a non-finite gradient"));
}

std::string_view name(Verdict v) {
  switch (v) {
    case Verdict::kEquivalent:
      return "EQUIVALENT";
    case Verdict::kNonInferior:
      return "NON-INFERIOR";
    case Verdict::kWorse:
      return "WORSE";
    case Verdict::kInconclusive:
      return "INCONCLUSIVE";
    case Verdict::kDiverged:
      return "DIVERGED";
  }
  return "";
}

std::vector<Comparison> compare_variants(const Losses& baseline,
                                         const std::vector<Losses>& variants,
                                         const Declaration& declared,
                                         const std::vector<std::uint64_t>& planned) {
  const bool baseline_failed = std::any_of(
      baseline.begin(), baseline.end(), [](const auto& seed) { return failed(seed.second); });
  std::vector<Comparison> all;
  for (const Losses& v : variants) all.push_back(measure(baseline, v, declared));
  adjust(all, &Comparison::p_non_inferior);
  adjust(all, &Comparison::p_equivalent);
  adjust(all, &Comparison::p_worse);
  for (std::size_t i = 0; i < all.size(); ++i) {
    decide(all[i], baseline_failed, missing(baseline, variants[i], planned), declared);
  }
  return all;
}

}  // namespace zeropp::experiments
