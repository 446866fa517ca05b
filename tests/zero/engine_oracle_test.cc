// The engine against a plain loop without ranks, stages, buckets or ledgers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "quant/convert.h"
#include "quant/rng.h"
#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using quant::Dtype;
using zero::OptimizerKind;

/// One process, the arithmetic as design section 4 words it, scalar code.
class PlainLoop : public zero::WeightSource, public zero::GradSink {
 public:
  PlainLoop(const zero::Model& model, const EngineConfig& config, double scale)
      : model_(model), c_(config), scale_(scale), run_(model.start(nullptr)) {
    for (std::uint32_t t = 0; t < model.tensors().size(); ++t) {
      const auto& spec = model.tensors()[t];
      master_.emplace_back(spec.numel, spec.init == zero::InitKind::kOnes ? 1.0F : 0.0F);
      if (spec.init == zero::InitKind::kNormal) {
        const quant::Philox random(
            {.seed = c_.seed, .purpose = quant::Purpose::kInit, .tensor = t});
        for (std::size_t i = 0; i < spec.numel; ++i) {
          master_[t][i] = random.normal(i) * static_cast<float>(spec.init_std);
        }
      }
      m_.emplace_back(spec.numel, 0.0F);
      v_.emplace_back(spec.numel, 0.0F);
      acc_.emplace_back(spec.numel, 0.0F);
      weights_.emplace_back(nullptr, quant::MemoryKind::kWorkspace, model.dtype(), spec.numel);
      grads_.emplace_back(nullptr, quant::MemoryKind::kWorkspace, model.dtype(), spec.numel);
    }
  }

  quant::ConstView weight(std::uint32_t t) override { return weights_[t].view(); }
  quant::MutView grad(std::uint32_t t) override { return grads_[t].view(); }
  void done(std::uint32_t t) override {
    std::vector<float> x(grads_[t].size());
    quant::convert(grads_[t].view(), quant::mut_view(x));
    for (std::size_t i = 0; i < x.size(); ++i) {
      acc_[t][i] = quant::round_to(c_.grad_accum, micro_ == 0 ? x[i] : acc_[t][i] + x[i]);
    }
  }

  double step() {
    double loss = 0;
    for (std::uint32_t t = 0; t < master_.size(); ++t) {
      quant::convert(quant::view(master_[t]), weights_[t].view());
    }
    for (micro_ = 0; micro_ < c_.gas; ++micro_) loss += micro_step();
    for (auto& acc : acc_) {
      for (float& x : acc) x = quant::round_to(model_.dtype(), quant::round_to(c_.wire, x));
    }
    norm_ = std::sqrt(sum_squares()) / scale_;
    double divisor = scale_;
    if (c_.clip > 0) divisor *= std::max(1.0, (norm_ + 1e-6) / c_.clip);
    ++steps_;
    for (std::uint32_t t = 0; t < master_.size(); ++t) {
      for (std::size_t i = 0; i < master_[t].size(); ++i) {
        update(t, i, acc_[t][i] / static_cast<float>(divisor));
      }
    }
    return loss / c_.gas;
  }
  double norm() const { return norm_; }
  State state() const {
    State all = master_;
    for (std::size_t t = 0; t < all.size(); ++t) {
      all[t].insert(all[t].end(), m_[t].begin(), m_[t].end());
      all[t].insert(all[t].end(), v_[t].begin(), v_[t].end());
    }
    return all;
  }

 private:
  double micro_step() {
    const auto n = static_cast<std::size_t>(c_.micro_batch * c_.seq);
    std::vector<std::int32_t> tokens(n), targets(n);
    for (int b = 0; b < c_.micro_batch; ++b) {
      const int index = (steps_ * c_.gas + micro_) * c_.micro_batch + b;
      zero::train_sample(toy_data(), c_.seed, static_cast<std::uint64_t>(index), c_.seq,
                         tokens.data() + b * c_.seq, targets.data() + b * c_.seq);
    }
    run_->begin({tokens, targets, c_.micro_batch, c_.seq}, true,
                static_cast<float>(scale_ / c_.gas));
    for (int u = 0; u < model_.units(); ++u) run_->forward(u, *this);
    for (int u = model_.units() - 1; u >= 0; --u) run_->backward(u, *this, *this);
    return run_->loss();
  }
  double sum_squares() const {
    double sum = 0;
    for (const auto& acc : acc_) sum += quant::sum_squares(quant::view(acc));
    return sum;
  }
  void update(std::uint32_t t, std::size_t i, float g) {
    const auto& o = c_.optimizer;
    const auto f = [](double x) { return static_cast<float>(x); };
    const bool decays = o.decay_1d || model_.tensors()[t].shape.size() > 1;
    const double wd = decays ? o.weight_decay : 0;
    float& p = master_[t][i];
    if (o.kind == OptimizerKind::kSgd) {
      if (wd != 0) g = f(wd) * p + g;
      if (o.momentum != 0) g = m_[t][i] = f(o.momentum) * m_[t][i] + g;
      p -= f(o.lr) * g;
      return;
    }
    if (o.kind == OptimizerKind::kAdamW) {
      p *= f(1 - o.lr * wd);
    } else if (wd != 0) {
      g = f(wd) * p + g;
    }
    m_[t][i] = f(o.beta1) * m_[t][i] + f(1 - o.beta1) * g;
    v_[t][i] = f(o.beta2) * v_[t][i] + f(1 - o.beta2) * (g * g);
    const double c1 = 1 - std::pow(o.beta1, steps_), c2 = 1 - std::pow(o.beta2, steps_);
    p -= f(o.lr / c1) * (m_[t][i] / (std::sqrt(v_[t][i]) / f(std::sqrt(c2)) + f(o.eps)));
  }

  const zero::Model& model_;
  const EngineConfig c_;
  const double scale_;
  std::unique_ptr<zero::ModelRun> run_;
  State master_, m_, v_, acc_;
  std::vector<quant::Tensor> weights_, grads_;
  int steps_ = 0, micro_ = 0;
  double norm_ = 0;
};

struct Case {
  std::string name;
  Dtype dtype = Dtype::kF32, accum = Dtype::kF32, wire = Dtype::kF32;
  int gas = 1, batch = 1;
  double clip = 0, scale = 0;
  bool tied = true;
  zero::OptimizerConfig optimizer{.lr = 0.05};
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

class Oracle : public testing::TestWithParam<Case> {};

TEST_P(Oracle, StageZeroOnOneRankIsThePlainLoopToTheBit) {
  const Case& p = GetParam();
  EngineConfig c = toy_config();
  c.grad_accum = p.accum;
  c.wire = p.wire;
  c.gas = p.gas;
  c.micro_batch = p.batch;
  c.clip = p.clip;
  c.optimizer = p.optimizer;
  if (p.scale != 0) c.loss_scale = {.enabled = true, .loss_scale = p.scale};
  const TiedMlpConfig mlp{
      .tied = p.tied, .dtype = p.dtype, .branch = [](int pass) { return pass % 3 != 1; }};
  const Experiment e{.topology = hierarchy::Topology::two_level(1, 1),
                     .scheme = at_stage(0),
                     .config = c,
                     .model = [&](int) { return tied_mlp(mlp); },
                     .steps = 5};
  const Results results = run(e);

  const auto model = tied_mlp(mlp);
  PlainLoop plain(*model, c, p.scale == 0 ? 1.0 : p.scale);
  for (int s = 0; s < e.steps; ++s) {
    const auto& step = results[0].steps[static_cast<std::size_t>(s)];
    EXPECT_EQ(step.loss, plain.step()) << "step " << s;
    EXPECT_DOUBLE_EQ(step.grad_norm, plain.norm()) << "step " << s;
    EXPECT_GT(step.grad_norm, 0);
    EXPECT_FALSE(step.skipped);
  }
  EXPECT_EQ(results[0].state, plain.state());
  EXPECT_NE(results[0].steps.front().loss, results[0].steps.back().loss);
}

INSTANTIATE_TEST_SUITE_P(
    Precisions, Oracle,
    testing::Values(
        Case{.name = "fp32"}, Case{.name = "untied", .tied = false},
        Case{.name = "fp32_accumulated", .gas = 4, .batch = 2},
        Case{.name = "fp32_clipped", .clip = 0.1},
        Case{.name = "bf16",
             .dtype = Dtype::kBF16,
             .accum = Dtype::kBF16,
             .wire = Dtype::kBF16,
             .gas = 3},
        Case{.name = "bf16_fp32_accumulator",
             .dtype = Dtype::kBF16,
             .wire = Dtype::kBF16,
             .gas = 3},
        Case{.name = "bf16_fp32_wire", .dtype = Dtype::kBF16, .gas = 2},
        Case{.name = "fp16_scaled",
             .dtype = Dtype::kF16,
             .accum = Dtype::kF16,
             .wire = Dtype::kF16,
             .gas = 2,
             .clip = 0.5,
             .scale = 256},
        Case{.name = "fp32_bf16_wire", .wire = Dtype::kBF16},
        Case{.name = "adam_l2",
             .optimizer = {.kind = OptimizerKind::kAdam, .lr = 0.02, .weight_decay = 0.1}},
        Case{.name = "adamw_no_decay_1d",
             .optimizer = {.lr = 0.02, .weight_decay = 0.1, .decay_1d = false}},
        Case{.name = "sgd", .optimizer = {.kind = OptimizerKind::kSgd, .lr = 0.1}},
        Case{.name = "sgd_momentum",
             .optimizer = {.kind = OptimizerKind::kSgd,
                           .lr = 0.1,
                           .weight_decay = 0.01,
                           .momentum = 0.9}}),
    [](const auto& test) { return test.param.name; });

/// The largest difference of two states, over the largest value.
double distance(const State& a, const State& b) {
  double difference = 0, largest = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    for (std::size_t i = 0; i < a[t].size(); ++i) {
      difference = std::max(difference, std::fabs(static_cast<double>(a[t][i]) - b[t][i]));
      largest = std::max(largest, std::fabs(static_cast<double>(b[t][i])));
    }
  }
  return difference / largest;
}

// 24 samples a step, however they are split: sums in another order, nothing else.
TEST(GlobalBatch, DoesNotDependOnHowItIsSplit) {
  struct Split {
    int nodes, per_node, gas, batch;
  };
  std::vector<Results> all;
  for (const Split s : {Split{1, 1, 1, 24},
                        {1, 1, 6, 4},
                        {1, 4, 1, 6},
                        {2, 4, 3, 1},
                        {3, 2, 2, 2},
                        {2, 12, 1, 1}}) {
    EngineConfig c = toy_config();
    c.gas = s.gas;
    c.micro_batch = s.batch;
    c.optimizer = {.kind = OptimizerKind::kSgd, .lr = 0.2, .momentum = 0.9};
    c.clip = 0.3;
    all.push_back(run({.topology = hierarchy::Topology::two_level(s.nodes, s.per_node),
                       .scheme = at_stage(3),
                       .config = c,
                       .steps = 4}));
    EXPECT_LT(distance(all.back()[0].state, all.front()[0].state), 2e-6) << all.size();
    EXPECT_NEAR(all.back()[0].steps.back().loss, all.front()[0].steps.back().loss, 1e-6);
    EXPECT_NEAR(all.back()[0].steps.back().grad_norm, all.front()[0].steps.back().grad_norm,
                1e-6);
  }
  EXPECT_NE(all[0][0].state, all[2][0].state);  // Else the bound above measures nothing.
}

}  // namespace
}  // namespace zeropp::test
