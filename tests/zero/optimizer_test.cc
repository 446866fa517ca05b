#include "zero/optimizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "quant/convert.h"
#include "quant/error.h"

namespace zeropp::zero {
namespace {

using quant::Dtype;

/// Deterministic values in (-1, 1) of varied magnitude.
std::vector<float> values(std::size_t n, std::uint64_t seed, float scale = 1) {
  std::vector<float> out(n);
  std::uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
  for (float& value : out) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    const auto unit = static_cast<float>(static_cast<std::int32_t>(x)) * 0x1p-31F;
    value = scale * std::ldexp(unit, -static_cast<int>(x >> 60));
  }
  return out;
}

struct State {
  std::vector<float> p, m, v;
  explicit State(std::size_t n) : p(values(n, 1)), m(n, 0.0F), v(n, 0.0F) {}
  OptimizerArgs args(quant::ConstView grad, double lr, std::uint64_t t) {
    return {.master = p.data(), .m = m.data(), .v = v.data(), .grad = grad, .lr = lr, .t = t};
  }
  bool same_bits(const State& o) const {
    const auto equal = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return equal(p, o.p) && equal(m, o.m) && equal(v, o.v);
  }
};

/// torch's update (torch/optim/{adamw,adam,sgd}.py) in double precision.
struct Oracle {
  std::vector<double> p, m, v;
  explicit Oracle(const State& s) : p(s.p.begin(), s.p.end()), m(p.size()), v(p.size()) {}
  void step(const OptimizerConfig& c, const std::vector<float>& grad, double divisor, double lr,
            double decay, double t) {
    const double c1 = c.bias_correction ? 1 - std::pow(c.beta1, t) : 1;
    const double c2 = c.bias_correction ? 1 - std::pow(c.beta2, t) : 1;
    for (std::size_t i = 0; i < p.size(); ++i) {
      double g = static_cast<double>(grad[i]) / divisor;
      if (c.kind == OptimizerKind::kAdamW) p[i] -= lr * decay * p[i];
      if (c.kind != OptimizerKind::kAdamW) g += decay * p[i];
      if (c.kind == OptimizerKind::kSgd) {
        m[i] = c.momentum * m[i] + g;
        p[i] -= lr * (c.momentum != 0 ? m[i] : g);
        continue;
      }
      m[i] += (1 - c.beta1) * (g - m[i]);
      v[i] = c.beta2 * v[i] + (1 - c.beta2) * g * g;
      p[i] -= lr / c1 * m[i] / (std::sqrt(v[i]) / std::sqrt(c2) + c.eps);
    }
  }
};

struct Rule {
  std::string name;
  OptimizerConfig config;
  double decay = 0;
};
std::ostream& operator<<(std::ostream& out, const Rule& rule) { return out << rule.name; }

const std::vector<Rule> kRules = {
    {"adamw", {.kind = OptimizerKind::kAdamW}, 0.1},
    {"adamw_no_decay", {.kind = OptimizerKind::kAdamW}, 0},
    {"adamw_plain", {.kind = OptimizerKind::kAdamW, .bias_correction = false}, 0.01},
    {"adamw_gpt", {.kind = OptimizerKind::kAdamW, .beta2 = 0.95, .eps = 1e-6}, 0.1},
    {"adam_l2", {.kind = OptimizerKind::kAdam}, 0.1},
    {"sgd", {.kind = OptimizerKind::kSgd}, 0},
    {"sgd_decay", {.kind = OptimizerKind::kSgd}, 0.1},
    {"sgd_momentum", {.kind = OptimizerKind::kSgd, .momentum = 0.9}, 0.01},
};

class OptimizerRule : public testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(All, OptimizerRule, testing::ValuesIn(kRules),
                         [](const auto& rule) { return rule.param.name; });

TEST_P(OptimizerRule, FollowsTheOracleInDouble) {
  const Rule& rule = GetParam();
  constexpr std::size_t n = 1003;
  State state(n);
  Oracle oracle(state);
  for (std::uint64_t t = 1; t <= 30; ++t) {
    const std::vector<float> grad = values(n, 100 + t, 8);
    const double lr = 0.01 * std::cos(0.03 * static_cast<double>(t));
    OptimizerArgs args = state.args(quant::view(grad), lr, t);
    args.grad_divisor = 3;
    args.weight_decay = rule.decay;
    optimizer_update(rule.config, args);
    oracle.step(rule.config, grad, 3, lr, rule.decay, static_cast<double>(t));
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(state.p[i], oracle.p[i], 2e-6 * (1 + std::abs(oracle.p[i]))) << t << " " << i;
      if (rule.config.kind != OptimizerKind::kSgd) {
        ASSERT_NEAR(state.m[i], oracle.m[i], 1e-6 * (0.1 + std::abs(oracle.m[i])));
        ASSERT_NEAR(state.v[i], oracle.v[i], 1e-6 * (0.1 + std::abs(oracle.v[i])));
      }
    }
  }
}

/// Three updates of n elements in pieces that end at the cuts.
State run(const Rule& rule, Dtype dtype, const std::vector<std::size_t>& cuts) {
  const std::size_t n = cuts.back();
  State state(n);
  for (std::uint64_t t = 1; t <= 3; ++t) {
    const std::vector<float> wide = values(n, 7 + t);
    std::vector<std::byte> grad(n * quant::size_of(dtype));
    quant::convert(quant::view(wide), {grad.data(), dtype, n});
    const quant::ConstView view{grad.data(), dtype, n};
    std::size_t first = 0;
    for (std::size_t cut : cuts) {
      OptimizerArgs args = state.args(view.slice(first, cut - first), 0.01, t);
      args.master += first, args.m += first, args.v += first;
      args.grad_divisor = 7;
      args.weight_decay = rule.decay;
      optimizer_update(rule.config, args);
      first = cut;
    }
  }
  return state;
}

TEST_P(OptimizerRule, SplitsChangeNoBit) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    const State whole = run(GetParam(), dtype, {3001});
    EXPECT_TRUE(whole.same_bits(run(GetParam(), dtype, {1, 8, 9, 9, 1500, 2999, 3001})));
    EXPECT_TRUE(whole.same_bits(run(GetParam(), dtype, {1023, 2049, 3001})));
    std::vector<std::size_t> singles;
    for (std::size_t i = 1; i <= 3001; ++i) singles.push_back(i);
    EXPECT_TRUE(whole.same_bits(run(GetParam(), dtype, singles)));
  }
}

TEST_P(OptimizerRule, InstructionSetsChangeNoBit) {
  const State best = run(GetParam(), Dtype::kF32, {1234});
  int tried = 0;
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    EXPECT_TRUE(best.same_bits(run(GetParam(), Dtype::kF32, {1234})))
        << hwy::TargetName(target);
    ++tried;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  if (tried < 2) GTEST_SKIP() << "no second instruction set on this machine";
}

TEST_P(OptimizerRule, NarrowGradientsAreTheirValues) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    std::vector<float> grad = values(777, 3);
    for (float& g : grad) g = quant::round_to(dtype, g);
    std::vector<std::byte> narrow(grad.size() * 2);
    quant::convert(quant::view(grad), {narrow.data(), dtype, grad.size()});
    State a(grad.size()), b(grad.size());
    optimizer_update(GetParam().config, a.args(quant::view(grad), 0.1, 1));
    optimizer_update(GetParam().config, b.args({narrow.data(), dtype, grad.size()}, 0.1, 1));
    EXPECT_TRUE(a.same_bits(b));
  }
}

TEST_P(OptimizerRule, DividesTheGradientFirst) {
  const std::vector<float> grad = values(100, 3);
  std::vector<float> divided = grad;
  for (float& g : divided) g /= 3;
  State a(100), b(100);
  OptimizerArgs args = a.args(quant::view(grad), 0.1, 1);
  args.grad_divisor = 3;
  optimizer_update(GetParam().config, args);
  optimizer_update(GetParam().config, b.args(quant::view(divided), 0.1, 1));
  EXPECT_TRUE(a.same_bits(b));
}

TEST(Optimizer, AdamWDecaysWithoutAGradientAndAdamDoesNotDecouple) {
  const std::vector<float> zero(4, 0.0F);
  State state(4);
  const std::vector<float> before = state.p;
  OptimizerArgs args = state.args(quant::view(zero), 0.5, 1);
  args.weight_decay = 0.5;
  optimizer_update({.kind = OptimizerKind::kAdamW, .weight_decay = 99}, args);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(state.p[i], 0.75F * before[i]);
  EXPECT_EQ(state.m, zero);
}

TEST(Optimizer, FirstAdamStepIsTheRateTimesTheSign) {
  const std::vector<float> grad = {1e-3F, -2.0F, 4e4F};
  State state(3);
  const std::vector<float> before = state.p;
  optimizer_update({}, state.args(quant::view(grad), 0.25, 1));
  EXPECT_NEAR(state.p[0], before[0] - 0.25, 1e-5);
  EXPECT_NEAR(state.p[1], before[1] + 0.25, 1e-6);
  EXPECT_NEAR(state.p[2], before[2] - 0.25, 1e-6);
}

TEST(Optimizer, SgdNeedsNoState) {
  std::vector<float> p = {1.0F, 2.0F, 3.0F};
  const std::vector<float> grad = {1.0F, 1.0F, -2.0F};
  optimizer_update({.kind = OptimizerKind::kSgd},
                   {.master = p.data(), .grad = quant::view(grad), .lr = 0.5});
  EXPECT_EQ(p, (std::vector<float>{0.5F, 1.5F, 4.0F}));
}

TEST(Optimizer, TinyValuesAreNotFlushed) {
  std::vector<float> p = {0x1p-126F};
  const std::vector<float> grad = {0x1p-127F};
  optimizer_update({.kind = OptimizerKind::kSgd},
                   {.master = p.data(), .grad = quant::view(grad), .lr = 1});
  EXPECT_EQ(p[0], 0x1p-127F);
}

TEST(Optimizer, EmptyAndNaN) {
  State state(9);
  optimizer_update({}, state.args({nullptr, Dtype::kBF16, 0}, 0.1, 1));
  EXPECT_TRUE(state.same_bits(State(9)));
  std::vector<float> grad(9, 1.0F);
  grad[8] = std::numeric_limits<float>::quiet_NaN();
  optimizer_update({}, state.args(quant::view(grad), 0.1, 1));
  EXPECT_TRUE(std::isnan(state.p[8]));
  EXPECT_FALSE(std::isnan(state.p[7]));
}

TEST(Optimizer, NamesAreDeepSpeeds) {
  EXPECT_EQ(parse_optimizer("Adam", true), OptimizerKind::kAdamW);
  EXPECT_EQ(parse_optimizer("Adam", false), OptimizerKind::kAdam);
  EXPECT_EQ(parse_optimizer("AdamW", false), OptimizerKind::kAdamW);
  EXPECT_EQ(parse_optimizer("sgd", true), OptimizerKind::kSgd);
  EXPECT_THROW(parse_optimizer("Lamb", true), UsageError);
}

}  // namespace
}  // namespace zeropp::zero
