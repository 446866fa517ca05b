// PowerSGD against plain double-precision matrices, and its state against skips and scales.

#include "zero/powersgd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quant/error.h"
#include "quant/rng.h"
#include "tests/zero/engine_harness.h"
#include "zero/engine/low_rank_math.h"

namespace zeropp::test {
namespace {

using hierarchy::Algorithm;
using hierarchy::Topology;
using testing::HasSubstr;

constexpr std::size_t kRows = 12, kCols = 20;

ConstantModelConfig one_matrix(std::function<float(const GradPoint&)> gradient) {
  return {.tensors = {toy_tensor("matrix", {kRows, 5, 4}), toy_tensor("bias", {7}),
                      toy_tensor("thin", {3, 4})},
          .gradient = std::move(gradient)};
}

/// Any matrix, others for every rank, pass and tensor.
float noise(int rank, const GradPoint& p) {
  const quant::Philox random({.purpose = quant::Purpose::kTest,
                              .tensor = p.tensor,
                              .step = static_cast<std::uint64_t>(p.pass),
                              .sender = static_cast<std::uint32_t>(rank)});
  return random.normal(p.element);
}

Experiment experiment(const SchemeRequest& scheme, int rank,
                      std::function<float(int, const GradPoint&)> gradient) {
  Experiment e{.topology = Topology::two_level(3, 2),
               .scheme = scheme,
               .config = toy_config(),
               .model =
                   [gradient](int r) {
                     return constant_model(
                         one_matrix([=](const GradPoint& p) { return gradient(r, p); }));
                   },
               .steps = 1,
               .gradients = true};
  e.config.powersgd_rank = rank;
  return e;
}

using Matrix = std::vector<double>;  // Row by row.

/// What the paper says, for one matrix of all ranks, in plain loops.
class Oracle {
 public:
  Oracle(std::size_t ranks, std::size_t rank)
      : errors_(ranks, Matrix(kRows * kCols)), rank_(rank), q_(rank * kCols) {}

  /// Mean gradient of one micro-step.
  Matrix reduce(std::vector<Matrix> m, std::uint64_t step, std::uint32_t micro) {
    for (std::size_t r = 0; r < m.size(); ++r) {
      for (std::size_t i = 0; i < m[r].size(); ++i) m[r][i] += errors_[r][i];
    }
    orthonormalise(q_, kCols, [&](std::size_t k, std::size_t j) {
      const quant::Philox random({.seed = toy_config().seed,
                                  .purpose = quant::Purpose::kShared,
                                  .step = step,
                                  .micro = micro,
                                  .part = static_cast<std::uint32_t>(k),
                                  .level = 7});
      return double{random.normal(j)};
    });
    const double n = static_cast<double>(m.size());
    Matrix p(rank_ * kRows), q(rank_ * kCols), mean(kRows * kCols);
    for (const Matrix& x : m) {
      each([&](std::size_t k, std::size_t i, std::size_t j) {
        p[k * kRows + i] += x[i * kCols + j] * q_[k * kCols + j] / n;
      });
    }
    orthonormalise(p, kRows, [](std::size_t, std::size_t) { return 0.0; });
    for (const Matrix& x : m) {
      each([&](std::size_t k, std::size_t i, std::size_t j) {
        q[k * kCols + j] += x[i * kCols + j] * p[k * kRows + i] / n;
      });
    }
    each([&](std::size_t k, std::size_t i, std::size_t j) {
      mean[i * kCols + j] += p[k * kRows + i] * q[k * kCols + j];
    });
    q_ = q;
    for (std::size_t r = 0; r < m.size(); ++r) {
      for (std::size_t i = 0; i < mean.size(); ++i) errors_[r][i] = m[r][i] - mean[i];
    }
    return mean;
  }

 private:
  template <class Use>
  void each(const Use& use) const {
    for (std::size_t k = 0; k < rank_; ++k) {
      for (std::size_t i = 0; i < kRows; ++i) {
        for (std::size_t j = 0; j < kCols; ++j) use(k, i, j);
      }
    }
  }
  template <class Replace>
  static void orthonormalise(Matrix& v, std::size_t n, const Replace& replace) {
    for (std::size_t k = 0; k < v.size() / n; ++k) {
      double* x = v.data() + k * n;
      double norm = 0;
      for (std::size_t i = 0; i < n; ++i) norm += x[i] * x[i];
      for (std::size_t i = 0; i < n && norm == 0; ++i) x[i] = replace(k, i);
      for (int pass = 0; pass < 3; ++pass) {
        for (std::size_t l = 0; l < k; ++l) {
          double share = 0;
          for (std::size_t i = 0; i < n; ++i) share += x[i] * v[l * n + i];
          for (std::size_t i = 0; i < n; ++i) x[i] -= share * v[l * n + i];
        }
      }
      norm = 0;
      for (std::size_t i = 0; i < n; ++i) norm += x[i] * x[i];
      for (std::size_t i = 0; i < n && norm > 0; ++i) x[i] /= std::sqrt(norm);
    }
  }

  std::vector<Matrix> errors_;
  std::size_t rank_;
  Matrix q_;
};

TEST(PowerSgd, IsThePapersWithErrorFeedbackAndWarmStart) {
  constexpr int kSteps = 4, kGas = 2, kRanks = 6;
  for (const auto& scheme : schemes(2, "micro_step")) {
    for (const Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      SCOPED_TRACE(testing::Message() << scheme.name << " " << hierarchy::name(algorithm));
      Experiment e = experiment(scheme.request, 2, noise);
      e.config.algorithm = algorithm;
      e.config.gas = kGas;
      e.steps = kSteps;
      const Results results = run(e);
      Oracle oracle(kRanks, 2);
      Matrix want;
      for (int pass = 0; pass < kSteps * kGas; ++pass) {
        std::vector<Matrix> m(kRanks, Matrix(kRows * kCols));
        for (int r = 0; r < kRanks; ++r) {
          for (std::size_t i = 0; i < kRows * kCols; ++i) {
            m[static_cast<std::size_t>(r)][i] = noise(r, {pass, 0, i}) / kGas;
          }
        }
        const Matrix mean = oracle.reduce(std::move(m), static_cast<std::uint64_t>(pass / kGas),
                                          static_cast<std::uint32_t>(pass % kGas));
        if (pass % kGas == 0) want.assign(mean.size(), 0);
        for (std::size_t i = 0; i < mean.size(); ++i) want[i] += mean[i];
      }
      const auto& got = results[0].gradients[0];
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << i;
      // What is no matrix, or a small one, travels exact.
      for (const std::uint32_t t : {1U, 2U}) {
        for (std::size_t i = 0; i < results[0].gradients[t].size(); ++i) {
          double sum = 0;
          for (int r = 0; r < kRanks; ++r) {
            for (int p = (kSteps - 1) * kGas; p < kSteps * kGas; ++p)
              sum += noise(r, {p, t, i});
          }
          ASSERT_NEAR(results[0].gradients[t][i], sum / kRanks / kGas, 1e-5);
        }
      }
      EXPECT_THAT(results[0].routes[0].gradients, testing::ElementsAre("powersgd:rank=2"));
      EXPECT_THAT(results[0].routes[1].gradients, testing::ElementsAre("exact"));
      EXPECT_THAT(results[0].routes[2].gradients, testing::ElementsAre("exact"));
      for (const auto& r : results) EXPECT_EQ(r.memory_left, 0U);
    }
  }
}

TEST(PowerSgd, RecoversAMeanOfItsRank) {
  // Two terms; each rank has its own factors on the left, all the same on the right.
  const auto gradient = [](int rank, const GradPoint& p) {
    const std::size_t row = p.element / kCols, column = p.element % kCols;
    const auto i = static_cast<float>(row), j = static_cast<float>(column);
    return static_cast<float>(rank + 1) * (i - 3) * (j + 1) + std::sin(i + rank) * std::cos(j);
  };
  for (const int rank : {2, 3}) {
    const Results results = run(experiment(at_stage(2), rank, gradient));
    double worst = 0, largest = 0;
    for (std::size_t i = 0; i < kRows * kCols; ++i) {
      double mean = 0;
      for (int r = 0; r < 6; ++r) mean += gradient(r, {0, 0, i}) / 6.0;
      worst = std::max(worst, std::fabs(mean - results[0].gradients[0][i]));
      largest = std::max(largest, std::fabs(mean));
    }
    EXPECT_LT(worst, 1e-5 * largest) << rank;
  }
}

TEST(PowerSgd, ErrorsTelescope) {
  // With a constant gradient G of full rank the applied ones add up to T G less the last error.
  constexpr int kSteps = 60;
  const auto gradient = [](int rank, const GradPoint& p) {
    return noise(rank, {0, p.tensor, p.element});
  };
  Experiment e = experiment(at_stage(3), 1, gradient);
  e.steps = kSteps;
  std::vector<double> sum(kRows * kCols);
  const auto add = [&](Engine& engine) {
    const State g = engine.gather_gradients();
    for (std::size_t i = 0; !g.empty() && i < sum.size(); ++i) sum[i] += g[0][i];
  };
  e.before_step = [&](Engine& engine, int step) {
    if (step > 0) add(engine);
  };
  e.at_end = add;
  run(e);
  double error = 0, squares = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    double mean = 0;
    for (int r = 0; r < 6; ++r) mean += gradient(r, {0, 0, i}) / 6.0;
    error += std::pow(sum[i] / kSteps - mean, 2);
    squares += mean * mean;
  }
  EXPECT_LT(std::sqrt(error / squares), 0.15);  // Rank 1 of 12 alone leaves most of it.
}

TEST(PowerSgd, ErrorsAreKeptWithoutTheLossScale) {
  // Powers of two scale without rounding: any scale, and one that changes, gives the same bits.
  const auto hashes = [](bool enabled, int window) {
    Experiment e = experiment(at_stage(2), 2, noise);
    e.config.loss_scale = {
        .enabled = enabled, .initial_scale_power = 6, .loss_scale_window = window};
    e.steps = 4;
    e.config.optimizer.kind = zero::OptimizerKind::kSgd;
    return run(e)[0].hashes;
  };
  const auto plain = hashes(false, 1);
  EXPECT_EQ(hashes(true, 1000), plain);
  EXPECT_EQ(hashes(true, 1), plain);  // Doubles after every step.
}

TEST(PowerSgd, ASkippedStepLeavesNoTrace) {
  for (const auto& scheme : schemes(2, "micro_step")) {
    SCOPED_TRACE(scheme.name);
    const auto hash = [&](std::vector<int> bad) {
      // The micro-steps that are not in `bad` see the same gradients in order.
      const auto gradient = [bad](int rank, const GradPoint& p) {
        int pass = p.pass;
        for (const int b : bad) {
          if (b / 2 == p.pass / 2) {
            const bool here = b == p.pass && rank == 4 && p.tensor == 0 && p.element == 33;
            return here ? std::numeric_limits<float>::infinity() : 1.0F;
          }
          if (b / 2 < p.pass / 2) pass -= 2;
        }
        return noise(rank, {pass, p.tensor, p.element});
      };
      Experiment e = experiment(scheme.request, 2, gradient);
      e.config.gas = 2;
      e.steps = 3 + static_cast<int>(bad.size());
      const Results results = run(e);
      EXPECT_EQ(results[0].skipped, bad.size());
      return results[0].hashes.back();
    };
    const std::string clean = hash({});
    EXPECT_EQ(hash({2}), clean);
    EXPECT_EQ(hash({3, 7}), clean);
  }
}

TEST(PowerSgd, KeepsItsErrorOnEveryRank) {
  Experiment e = experiment(at_stage(3), 2, noise);
  e.steps = 3;
  const auto residual = static_cast<std::size_t>(quant::MemoryKind::kResidual);
  for (const auto& r : run(e)) {
    const std::uint64_t state = 4 * (kRows * kCols + 2 * kCols);
    EXPECT_EQ(r.memory.peak_by_kind()[residual], 2 * state);  // The last step's and this one's.
    EXPECT_EQ(r.memory_left, 0U);
  }
}

std::string refusal(const std::function<void(Experiment&)>& change) {
  Experiment e = experiment(at_stage(2), 2, noise);
  change(e);
  try {
    run(e);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PowerSgd, RefusesWhatItCannotDo) {
  EXPECT_THAT(refusal([](Experiment& e) {
                e.scheme = {.stage = 3, .mics_group = 2, .reduce_at = "two_hop"};
              }),
              HasSubstr("two_hop"));
  EXPECT_THAT(refusal([](Experiment& e) { quantize_gradients(e.config); }),
              HasSubstr("powersgd alone"));
  EXPECT_THAT(refusal([](Experiment& e) { e.topology = Topology::two_level(1, 1); }),
              HasSubstr("at least two ranks"));
  EXPECT_THAT(refusal([](Experiment& e) { e.config.powersgd_rank = 50; }),
              HasSubstr("powersgd:rank=50"));
  EXPECT_EQ(zero::powersgd_rank("powersgd"), 4);
  EXPECT_EQ(zero::powersgd_rank("powersgd:rank=9"), 9);
  EXPECT_EQ(zero::powersgd_rank("int8:block=4"), 0);
  for (const char* bad : {"powersgd:", "powersgd:rank=0", "powersgd:rank=", "powersgd:rank=2,",
                          "powersgd:rnk=2", "powersgd:rank=1025", "powersgd:rank=-1"}) {
    EXPECT_THROW(zero::powersgd_rank(bad), UsageError) << bad;
  }
}

TEST(LowRankMath, OrthonormalVectorsEvenFromNearlyEqualOnes) {
  constexpr std::size_t kN = 37, kVectors = 5;
  const quant::Philox random({.purpose = quant::Purpose::kTest, .tensor = 3});
  std::vector<float> v(kN * kVectors);
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = random.normal(i % kN) + 1e-3F * random.normal(i);  // All near the first.
  }
  std::copy_n(v.begin(), kN, v.begin() + 3 * kN);  // Equal: nothing is left of it.
  std::vector<std::size_t> replaced;
  zero::orthonormalise(v, kN, [&](std::size_t k, std::span<double> x) {
    replaced.push_back(k);
    for (std::size_t i = 0; i < kN; ++i) x[i] = random.normal(1000 + i);
  });
  EXPECT_THAT(replaced, testing::ElementsAre(3));
  for (std::size_t a = 0; a < kVectors; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      double product = 0;
      for (std::size_t i = 0; i < kN; ++i) product += double{v[a * kN + i]} * v[b * kN + i];
      EXPECT_NEAR(product, a == b ? 1 : 0, 1e-6) << a << ' ' << b;
    }
  }
  std::vector<float> nan{1, 0, std::numeric_limits<float>::quiet_NaN(), 0, 1, 1};
  zero::orthonormalise(nan, 2, nullptr);
  EXPECT_EQ(nan[0], 1);
  for (std::size_t i = 2; i < 6; ++i) EXPECT_TRUE(std::isnan(nan[i])) << i;
  std::vector<float> none{0, 0, 3, 4};
  zero::orthonormalise(none, 2, nullptr);
  EXPECT_THAT(none, testing::ElementsAre(0, 0, 0.6F, 0.8F));
}

}  // namespace
}  // namespace zeropp::test
