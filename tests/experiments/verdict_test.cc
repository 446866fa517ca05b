// The statistics behind verdicts: published tables, hand-made cases, simulated families.
#include "experiments/verdict/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quant/rng.h"

namespace zeropp::experiments {
namespace {

TEST(Statistics, QuantilesAreThoseOfPublishedTables) {
  // Fisher and Yates, table III.
  EXPECT_NEAR(student_quantile(0.95, 2), 2.920, 5e-4);
  EXPECT_NEAR(student_quantile(0.95, 9), 1.833, 5e-4);
  EXPECT_NEAR(student_quantile(0.975, 4), 2.776, 5e-4);
  EXPECT_NEAR(student_quantile(0.975, 30), 2.042, 5e-4);
  // 1 - 0.05^(1/S).
  EXPECT_NEAR(failure_bound(0, 5), 0.4507, 5e-4);
  EXPECT_NEAR(failure_bound(0, 10), 0.2589, 5e-4);
  EXPECT_NEAR(failure_bound(0, 20), 0.1391, 5e-4);
  EXPECT_EQ(failure_bound(3, 3), 1.0);
}

TEST(Statistics, IntervalsByHand) {
  const std::vector<double> d{1, 2, 3, 4};
  const Paired p = paired(d);
  EXPECT_EQ(p.mean, 2.5);
  EXPECT_NEAR(p.sd, 1.2909944, 1e-6);
  const Interval i = confidence_interval(p, 0.9);  // t(0.95, 3) = 2.3534
  EXPECT_NEAR(i.low, 2.5 - 2.3534 * 1.2909944 / 2, 1e-4);
  EXPECT_NEAR(i.high, 2.5 + 2.3534 * 1.2909944 / 2, 1e-4);
  EXPECT_NEAR(p_above(p, 2.5), 0.5, 1e-12);
  EXPECT_NEAR(p_below(p, i.high), 0.05, 1e-4);
  const std::vector<double> same{0.5, 0.5};
  EXPECT_EQ(p_below(paired(same), 1), 0.0);
  EXPECT_EQ(p_above(paired(same), 1), 1.0);
}

TEST(Statistics, SignFlipsAreExactForFewSeeds) {
  // 1, 2, 3: only all-plus and all-minus are as far as 6.
  EXPECT_EQ(sign_flip_p(std::vector<double>{1, 2, 3}), 2.0 / 8);
  EXPECT_EQ(sign_flip_p(std::vector<double>{1, -1}), 1.0);
  EXPECT_EQ(sign_flip_p(std::vector<double>{0.1, 0.2, 0.3, 0.4, 0.5}), 2.0 / 32);
  const std::vector<double> many(25, 1.0);
  EXPECT_NEAR(sign_flip_p(many), 1e-5, 1e-5);
}

TEST(Statistics, HolmByHand) {
  EXPECT_EQ(holm(std::vector<double>{0.01, 0.04, 0.03}),
            (std::vector<double>{0.03, 0.06, 0.06}));
  EXPECT_EQ(holm(std::vector<double>{0.9}), (std::vector<double>{0.9}));
}

TEST(Statistics, SeedsNeededAreThoseOfTheProcedure) {
  // Margins in deviations for about 80 % power: S = 5: 1.64, 10: 1.02, 20: 0.68.
  EXPECT_NEAR(static_cast<double>(seeds_needed(1, 1.64, 0.05)), 5, 1);
  EXPECT_NEAR(static_cast<double>(seeds_needed(1, 1.02, 0.05)), 10, 1);
  EXPECT_NEAR(static_cast<double>(seeds_needed(1, 0.68, 0.05)), 20, 1);
  EXPECT_EQ(seeds_needed(0, 1, 0.05), 2U);
  EXPECT_EQ(seeds_needed(1, 1e-6, 0.05), 0U);
}

Losses losses(const std::vector<double>& values) {
  Losses l;
  for (std::size_t i = 0; i < values.size(); ++i) l[i + 1] = values[i];
  return l;
}

Comparison compare(const std::vector<double>& base, const std::vector<double>& other,
                   double margin = 0.1) {
  return compare_variants(losses(base), {losses(other)}, {.margin = margin}).at(0);
}

TEST(Verdicts, OfClearCases) {
  const std::vector<double> base{2.0, 2.1, 2.2, 2.3, 2.4};
  EXPECT_EQ(compare(base, base).verdict, Verdict::kEquivalent);
  EXPECT_FALSE(compare(base, base).detectable);
  EXPECT_EQ(compare(base, {2.01, 2.11, 2.20, 2.31, 2.41}).verdict, Verdict::kEquivalent);
  EXPECT_TRUE(compare(base, {2.01, 2.11, 2.215, 2.31, 2.41}).detectable);
  EXPECT_EQ(compare(base, {2.2, 2.32, 2.4, 2.51, 2.6}).verdict, Verdict::kWorse);
  EXPECT_EQ(compare(base, {1.8, 1.92, 2.0, 2.11, 2.2}).verdict, Verdict::kNonInferior);
  const Comparison few = compare({2.0, 2.1}, {2.0, 2.2});
  EXPECT_EQ(few.verdict, Verdict::kInconclusive);
  EXPECT_GT(few.seeds_needed, 2U);
  EXPECT_EQ(compare({2.0}, {2.0}).verdict, Verdict::kInconclusive);
  EXPECT_NE(compare({2.0}, {2.0}).reason.find("1 paired seed;"), std::string::npos);
}

TEST(Verdicts, FailuresAreNeitherDroppedNorAveraged) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> base{2.0, 2.1, 2.2};
  const Comparison c = compare(base, {2.0, nan, 2.2});
  EXPECT_EQ(c.verdict, Verdict::kDiverged);
  EXPECT_EQ(c.failures, 1U);
  EXPECT_EQ(compare({2.0, nan, 2.2}, base).verdict, Verdict::kDiverged);
  Losses missing = losses(base);
  missing[2].reset();
  EXPECT_EQ(compare_variants(losses(base), {missing}, {}).at(0).verdict, Verdict::kDiverged);
}

TEST(Verdicts, UnpairedSeedsAreNamedAndLeftOut) {
  Losses a = losses({2.0, 2.1, 2.2}), b = a;
  a[9] = 5;
  b[7] = 9;
  const Comparison c = compare_variants(a, {b}, {}).at(0);
  EXPECT_EQ(c.seeds, (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(c.unpaired, (std::vector<std::uint64_t>{7, 9}));
  EXPECT_EQ(c.difference.mean, 0);
}

/// Families of paired seeds with a known difference: losses vary from seed to seed far more
/// than the differences do.
double rate(double difference, Verdict verdict, std::size_t seeds, std::uint64_t key) {
  constexpr int kFamilies = 1000;
  const quant::Philox random({.seed = key, .purpose = quant::Purpose::kTest});
  std::uint64_t draw = 0;
  int count = 0;
  for (int f = 0; f < kFamilies; ++f) {
    std::vector<double> base, other;
    for (std::size_t s = 0; s < seeds; ++s) {
      base.push_back(2 + 10 * random.normal(draw++));
      other.push_back(base.back() + difference + random.normal(draw++));
    }
    count += compare(base, other, 1.17).verdict == verdict ? 1 : 0;
  }
  return count / static_cast<double>(kFamilies);
}

TEST(Verdicts, SimulatedFamiliesKeepTheDeclaredAlpha) {
  // Where the difference is the margin itself the rate is alpha; 3 sd of 1,000 draws above it.
  const double bound = 0.05 + 3 * std::sqrt(0.05 * 0.95 / 1000);
  EXPECT_LE(rate(1.17, Verdict::kWorse, 8, 1), bound);
  EXPECT_GE(rate(1.17, Verdict::kWorse, 8, 1), 0.05 - 3 * std::sqrt(0.05 * 0.95 / 1000));
  EXPECT_LE(rate(1.17, Verdict::kEquivalent, 8, 2), bound);
  EXPECT_LE(rate(-1.17, Verdict::kEquivalent, 8, 3), bound);
  EXPECT_LE(rate(0, Verdict::kWorse, 8, 4), 0.01);
}

TEST(Verdicts, SimulatedFamiliesHaveThePlannedPower) {
  // Margin 1.17 deviations, 8 seeds: planned for 80 %.
  EXPECT_NEAR(rate(0, Verdict::kEquivalent, 8, 5), 0.8, 3 * std::sqrt(0.16 / 1000) + 0.02);
  EXPECT_GT(rate(3, Verdict::kWorse, 8, 6), 0.95);
  EXPECT_LT(rate(0, Verdict::kEquivalent, 3, 7), 0.4);  // Three seeds certify little.
}

TEST(Verdicts, ManyVariantsAreCorrectedFor) {
  // One that passes alone at p just below alpha does not among ten.
  const std::vector<double> base{2.0, 2.1, 2.2, 2.3};
  const std::vector<double> other{2.02, 2.05, 2.26, 2.36};
  const Comparison alone = compare(base, other, 0.085);
  ASSERT_EQ(alone.verdict, Verdict::kEquivalent) << alone.p_equivalent;
  const std::vector<Losses> ten(10, losses(other));
  EXPECT_EQ(compare_variants(losses(base), ten, {.margin = 0.085}).at(0).verdict,
            Verdict::kInconclusive);
}

}  // namespace
}  // namespace zeropp::experiments
