#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace zeropp::experiments {

/// Statistics of paired differences d_s = loss(variant, seed s) - loss(baseline, seed s). The
/// distributions are Boost.Math's.

struct Paired {
  std::size_t n = 0;
  double mean = 0;
  double sd = 0;  ///< Sample deviation (n - 1); 0 for n < 2.
  double standard_error() const;
};
Paired paired(std::span<const double> differences);

struct Interval {
  double low = 0, high = 0;
};
/// The two-sided confidence interval of the mean at `level` (0.9, 0.95): mean +- t(n-1) se.
/// n >= 2.
Interval confidence_interval(const Paired& p, double level);

/// p values of one-sided paired t tests, n >= 2. se = 0: 0 or 1, by the mean alone.
double p_below(const Paired& p, double bound);  ///< H0: mean >= bound.
double p_above(const Paired& p, double bound);  ///< H0: mean <= bound.

/// Two-sided sign-flip permutation test of mean 0: exact for n <= 20, else over 100,000 keyed
/// draws.
double sign_flip_p(std::span<const double> differences);

/// Holm, 1979: adjusted p values, in the order given.
std::vector<double> holm(std::span<const double> p);

/// The fewest seeds at which TOST at `alpha` proves |mean| < margin with probability `power`
/// when the mean is 0 and the deviation is sd; 0 where 10,000 do not suffice.
std::size_t seeds_needed(double sd, double margin, double alpha, double power = 0.8);

/// Upper 95 % bound of a failure rate of which `failures` of n were seen (Clopper-Pearson).
double failure_bound(std::size_t failures, std::size_t n);

double student_quantile(double probability, double degrees);

}  // namespace zeropp::experiments
