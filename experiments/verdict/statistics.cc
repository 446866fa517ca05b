#include "experiments/verdict/statistics.h"

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numeric>

#include "quant/rng.h"

namespace zeropp::experiments {
namespace {

using boost::math::students_t;

/// P(T <= t) with n - 1 degrees of freedom; by the sign alone where nothing varies.
double below(const Paired& p, double bound) {
  const double se = p.standard_error(), distance = p.mean - bound;
  if (se == 0) return distance < 0 ? 0 : 1;
  return cdf(students_t(static_cast<double>(p.n - 1)), distance / se);
}

}  // namespace

double Paired::standard_error() const {
  return n == 0 ? 0 : sd / std::sqrt(static_cast<double>(n));
}

Paired paired(std::span<const double> differences) {
  Paired p{.n = differences.size()};
  if (p.n == 0) return p;
  const auto n = static_cast<double>(p.n);
  p.mean = std::accumulate(differences.begin(), differences.end(), 0.0) / n;
  double squares = 0;
  for (const double d : differences) squares += (d - p.mean) * (d - p.mean);
  if (p.n > 1) p.sd = std::sqrt(squares / (n - 1));
  return p;
}

double student_quantile(double probability, double degrees) {
  return quantile(students_t(degrees), probability);
}

Interval confidence_interval(const Paired& p, double level) {
  const double half =
      student_quantile((1 + level) / 2, static_cast<double>(p.n - 1)) * p.standard_error();
  return {.low = p.mean - half, .high = p.mean + half};
}

double p_below(const Paired& p, double bound) { return below(p, bound); }

double p_above(const Paired& p, double bound) {
  const double se = p.standard_error(), distance = p.mean - bound;
  if (se == 0) return distance > 0 ? 0 : 1;
  return 1 - below(p, bound);
}

double sign_flip_p(std::span<const double> differences) {
  constexpr std::size_t kExact = 20;
  constexpr std::uint64_t kDraws = 100'000;
  const std::size_t n = differences.size();
  if (n == 0) return 1;
  const double seen = std::fabs(std::accumulate(differences.begin(), differences.end(), 0.0));
  const double slack = 1e-12 * seen;  // Sums of the same numbers in another order.
  const quant::Philox random({.seed = n, .purpose = quant::Purpose::kTest});
  const std::uint64_t draws = n <= kExact ? std::uint64_t{1} << n : kDraws;
  std::uint64_t as_far = 0;
  for (std::uint64_t draw = 0; draw < draws; ++draw) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const bool flip =
          n <= kExact ? (draw >> i & 1) != 0 : (random.word(draw * n + i) >> 31) != 0;
      sum += flip ? -differences[i] : differences[i];
    }
    as_far += std::fabs(sum) >= seen - slack ? 1 : 0;
  }
  // Of drawn permutations the one that was seen counts too (Phipson and Smyth, 2010).
  const double extra = n <= kExact ? 0 : 1;
  return (static_cast<double>(as_far) + extra) / (static_cast<double>(draws) + extra);
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return p[a] < p[b]; });
  std::vector<double> adjusted(p.size());
  double most = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    most = std::max(most, static_cast<double>(p.size() - i) * p[order[i]]);
    adjusted[order[i]] = std::min(1.0, most);
  }
  return adjusted;
}

std::size_t seeds_needed(double sd, double margin, double alpha, double power) {
  constexpr std::size_t kMost = 10'000;
  for (std::size_t n = 2; n <= kMost; ++n) {
    const double degrees = static_cast<double>(n - 1);
    // Both one-sided tests reject when |mean| < margin - t se; the mean has deviation se.
    const double reach = margin / (sd / std::sqrt(static_cast<double>(n))) -
                         student_quantile(1 - alpha, degrees);
    if (sd == 0) return n;
    if (reach > 0 && 2 * cdf(students_t(degrees), reach) - 1 >= power) return n;
  }
  return 0;
}

double failure_bound(std::size_t failures, std::size_t n) {
  if (failures >= n) return 1;
  return boost::math::binomial_distribution<>::find_upper_bound_on_p(
      static_cast<double>(n), static_cast<double>(failures), 0.05);
}

}  // namespace zeropp::experiments
