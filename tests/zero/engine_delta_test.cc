// Weight differences (`delta`): the replica of stages 1 and 2, or hpZ's secondary, is what they
// are added to. The same bits in every stage, bytes by the formula, and nothing lost on the
// way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "quant/error.h"
#include "quant/rng.h"
#include "tests/support/spawn.h"
#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Algorithm;
using hierarchy::Topology;
using quant::Dtype;
using quant::Role;
using zero::WeightReference;

// Stochastic, so that a wrong key shows.
constexpr auto kStochastic = "delta|int4:block=16,rounding=stochastic";

EngineConfig delta_config(const char* spec = kStochastic) {
  EngineConfig c = toy_config();
  c.gas = 2;
  c.check_replicas = true;
  quantize_weights(c, spec);
  return c;
}

/// Stages whose copies are a reference, `group` the ranks of a level.
std::vector<NamedScheme> references(int group) {
  std::vector<NamedScheme> all;
  for (const auto& s : exact_schemes(group)) {
    if (s.request.stage == 0 || (s.request.stage == 3 && s.request.secondary == 0)) continue;
    all.push_back(s);
  }
  return all;
}

Topology three_levels() {
  return Topology({{.name = "pair", .fan_out = 2},
                   {.name = "node", .fan_out = 2},
                   {.name = "net", .fan_out = 2}});
}

TEST(Delta, EveryStageWithAReferenceGivesTheSameBits) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (const bool tied : {true, false}) {
      Experiment e{.topology = Topology::two_level(2, 4), .config = delta_config(), .steps = 4};
      e.model = [&](int) { return tied_mlp({.tied = tied, .dtype = dtype}); };
      Results first;
      for (const auto& scheme : references(4)) {
        SCOPED_TRACE(testing::Message() << scheme.name << " " << quant::name(dtype));
        e.scheme = scheme.request;
        const Results results = run(e);
        if (first.empty()) first = results;
        expect_same(first, results);
        EXPECT_EQ(results[0].applied, 4U);
      }
      // It acts, and it is not what the same codec does without a reference.
      e.scheme = at_stage(2);
      quantize_weights(e.config, "int4:block=16,rounding=stochastic");
      EXPECT_NE(run(e)[0].hashes, first[0].hashes);
      e.config.weight_codec = nullptr;
      EXPECT_NE(run(e)[0].hashes, first[0].hashes);
    }
  }
}

TEST(Delta, EveryLevelsSecondaryGivesTheSameBits) {
  Experiment e{.topology = three_levels(), .scheme = at_stage(2), .config = delta_config()};
  e.steps = 3;
  const Results replicas = run(e);
  for (const int group : {2, 4}) {
    SCOPED_TRACE(testing::Message() << "group " << group);
    e.scheme = hpz(group);
    expect_same(replicas, run(e));
  }
  // Stages 1 and 2 gather at the step: any algorithm will do.
  e.scheme = at_stage(2);
  for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kRing}) {
    e.config.algorithm = algorithm;
    const Results other = run(e);
    e.scheme = at_stage(1);
    e.scheme.reduce_at = "micro_step";
    expect_same(other, run(e));
    e.scheme = at_stage(2);
  }
}

TEST(Delta, TakesDecoratedCodecs) {
  for (const char* spec :
       {"delta|hadamard(4)|int4:block=16", "delta|hadamard(4,random=yes)|int4:block=16",
        "delta|mxfp4", "delta|bf16"}) {
    SCOPED_TRACE(spec);
    Experiment e{.topology = Topology::two_level(2, 2), .config = delta_config(spec)};
    e.model = [](int) { return tied_mlp({.dtype = Dtype::kBF16}); };
    Results first;
    for (const auto& scheme : references(2)) {
      e.scheme = scheme.request;
      const Results results = run(e);
      if (first.empty()) first = results;
      expect_same(first, results);
    }
    EXPECT_EQ(first[0].routes[0].weights.rfind("delta|", 0), 0U);
    quantize_weights(e.config);
    EXPECT_NE(run(e)[0].hashes, first[0].hashes);
  }
}

TEST(Delta, BucketsPrefetchAndLaunchesChangeNoBit) {
  for (const auto& scheme : references(2)) {
    SCOPED_TRACE(scheme.name);
    Experiment e{.scheme = scheme.request, .config = delta_config(), .steps = 3};
    quantize_gradients(e.config, 2, "int4:block=16,rounding=stochastic");
    const Results first = run(e);
    for (const std::uint64_t size : {1, 40, 80, 1000000}) {
      e.config.gather_bucket = e.config.reduce_bucket = size;
      e.config.prefetch = size == 1 ? 0 : size;
      const Results results = run(e);
      expect_same(first, results);
      EXPECT_EQ(sent(first, {.role = Role::kWeight}), sent(results, {.role = Role::kWeight}));
    }
    for (const Launch& launch : launches()) {
      SCOPED_TRACE(launch.name);
      e.options = launch.options;
      e.options.on_exchange = [](int rank, const hierarchy::CallInfo&, std::uint64_t sequence) {
        const quant::Philox random({.seed = static_cast<std::uint64_t>(rank)});
        std::this_thread::sleep_for(std::chrono::microseconds(random.word(sequence) % 50));
      };
      expect_same(first, run(e));
    }
  }
}

/// 320 elements in four chunks of 80, blocks of 20, and a bias that travels exact.
std::unique_ptr<zero::Model> matrix_and_bias(Dtype dtype = Dtype::kF32, int bad_pass = -1,
                                             int rank = 0) {
  return constant_model({.tensors = {toy_tensor("matrix", {16, 20}), toy_tensor("bias", {24})},
                         .dtype = dtype,
                         .gradient = [bad_pass, rank](const GradPoint& p) {
                           const bool bad = p.pass == bad_pass && rank == 2 && p.tensor == 0 &&
                                            p.element == 319;
                           return bad ? std::numeric_limits<float>::infinity()
                                      : 0.1F * static_cast<float>(p.element % 7) - 0.2F;
                         }});
}

quant::WireBytes weights_on(const Results& results, std::size_t step, int link) {
  quant::WireBytes sum;
  for (const auto& r : results) {
    for (const auto& entry : r.by_step.at(step).entries()) {
      if (entry.key.call.role != Role::kWeight || entry.key.link != link) continue;
      sum += entry.sent.bytes;
    }
  }
  return sum;
}

TEST(DeltaBytes, CrossNodesOnceAVersionAndStayInsideOtherwise) {
  for (const int gas : {1, 3}) {
    Experiment e{.topology = Topology::two_level(3, 2),
                 .scheme = hpz(2),
                 .config = delta_config("delta|int4:block=20"),
                 .model = [](int) { return matrix_and_bias(Dtype::kBF16); },
                 .steps = 3};
    e.config.gas = gas;
    const Results results = run(e);
    const auto micro = static_cast<std::uint64_t>(gas);
    // Step 0 uses what every rank can compute.
    EXPECT_EQ(weights_on(results, 0, 1).total(), 0U);
    for (std::size_t step = 0; step < 3; ++step) {
      // 2 x 2 Psi (L-1)/L a rank and micro-step, N ranks, L = 2, in the parameter dtype.
      EXPECT_EQ(weights_on(results, step, 0),
                (quant::WireBytes{.exact = 2 * micro * 2 * (320 + 24) / 2 * 6}));
      if (step == 0) continue;
      // wire(d) (n-1)/n a node, n = 3: six chunks of 54 (the last 50), three blocks each.
      EXPECT_EQ(
          weights_on(results, step, 1),
          (quant::WireBytes{.payload = 2 * 320 / 2, .scale = 2 * 18 * 4, .exact = 2 * 24 * 2}));
    }
  }
}

TEST(DeltaBytes, StagesOneAndTwoSendOneDifferenceAStep) {
  for (const int stage : {1, 2}) {
    const Experiment e{.scheme = at_stage(stage),
                       .config = delta_config("delta|int4:block=20"),
                       .model = [](int) { return matrix_and_bias(Dtype::kBF16); }};
    const Results results = run(e);
    for (const std::size_t step : {0, 1}) {
      EXPECT_EQ(weights_on(results, step, 1),
                (quant::WireBytes{.payload = 160, .scale = 16 * 4, .exact = 24 * 2}));
    }
    EXPECT_EQ(sent(results[0].before, {}), 0U);
  }
}

TEST(DeltaMemory, IsThatOfTheStageWithoutIt) {
  for (const auto& scheme : references(2)) {
    SCOPED_TRACE(scheme.name);
    Experiment e{.scheme = scheme.request, .config = delta_config()};
    const Results delta = run(e);
    e.config.weight_codec = nullptr;
    const Results exact = run(e);
    for (std::size_t r = 0; r < delta.size(); ++r) {
      EXPECT_EQ(delta[r].memory.peak_model_states(), exact[r].memory.peak_model_states());
      EXPECT_EQ(delta[r].formula.total(), exact[r].formula.total());
      EXPECT_EQ(delta[r].memory_left, 0U);
    }
  }
}

/// The reference before every step and after the last one, as rank 0 has it.
struct References {
  std::vector<WeightReference> before;
  WeightReference last;
};
Results run_and_look(Experiment e, References& found) {
  e.before_step = [&](Engine& engine, int) {
    auto reference = engine.gather_reference();
    if (!reference.tensors.empty()) found.before.push_back(std::move(reference));
  };
  e.at_end = [&](Engine& engine) {
    auto reference = engine.gather_reference();
    if (!reference.tensors.empty()) found.last = std::move(reference);
  };
  return run(e);
}

// One Inf on one rank: the version stays, and so do reference and secondary.
TEST(DeltaSkip, LeavesTheReference) {
  for (const auto& scheme : references(2)) {
    SCOPED_TRACE(scheme.name);
    Experiment e{.scheme = scheme.request,
                 .config = delta_config("delta|int4:block=20"),
                 .model = [](int rank) { return matrix_and_bias(Dtype::kF16, 1, rank); },
                 .steps = 4};
    e.config.gas = 1;
    e.config.grad_accum = e.config.wire = Dtype::kF16;
    e.config.loss_scale = {.enabled = true, .initial_scale_power = 4, .hysteresis = 1};
    References r;
    const Results results = run_and_look(e, r);
    ASSERT_EQ(results[0].skipped, 1U);
    ASSERT_TRUE(results[0].steps[1].skipped);
    const bool late = scheme.request.stage == 3;  // Renewed at first use, not at the step.
    using testing::Each;
    EXPECT_THAT(r.before[1].versions, Each(late ? 0 : 1));
    EXPECT_THAT(r.before[2].versions, Each(1));
    EXPECT_THAT(r.before[3].versions, Each(late ? 1 : 2));
    // Across the skipped step and, at stage 3, the one that reuses its weights.
    EXPECT_EQ(r.before[2].tensors, (late ? r.before[3] : r.before[1]).tensors);
    EXPECT_NE(r.before[0].tensors, r.before[2].tensors);
    EXPECT_NE(r.last.tensors, r.before[2].tensors);
    EXPECT_EQ(results[0].steps[2].loss, results[0].steps[1].loss);
    EXPECT_EQ(weights_on(results, 2, 1).total() == 0, late);
  }
}

// Evaluation reads what training would decode and leaves no trace.
TEST(DeltaEvaluation, DeployedIsWhatTheNextStepSees) {
  for (const auto& scheme : references(2)) {
    SCOPED_TRACE(scheme.name);
    Experiment e{.scheme = scheme.request,
                 .config = delta_config("delta|int4:block=20"),
                 .model = [](int rank) { return matrix_and_bias(Dtype::kF32, 2, rank); },
                 .steps = 5};
    e.config.gas = 1;
    const Results undisturbed = run(e);
    std::vector<double> exact, deployed;
    e.before_step = [&](Engine& engine, int) {
      const double a = engine.evaluate(5), b = engine.evaluate(5, true);
      if (engine.state_sha256().empty()) return;
      exact.push_back(a);
      deployed.push_back(b);
    };
    const Results evaluated = run(e);
    expect_same(undisturbed, evaluated);
    EXPECT_EQ(evaluated[0].skipped, 1U);
    for (std::size_t s = 0; s < 5; ++s) {
      EXPECT_EQ(weights_on(undisturbed, s, 1), weights_on(evaluated, s, 1));
      // This model's loss is the sum of the weights, whatever the text.
      EXPECT_NEAR(deployed[s], evaluated[0].steps[s].loss, 1e-12);
      if (s > 0) {
        EXPECT_NE(deployed[s], exact[s]);
      }
    }
  }
}

EngineConfig sgd_config() {
  EngineConfig c = delta_config();
  c.optimizer.kind = zero::OptimizerKind::kSgd;  // No moments: masters are the whole state.
  c.optimizer.momentum = 0;
  return c;
}

State masters(const State& state) {
  State whole;
  for (const auto& t : state)
    whole.emplace_back(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 3));
  return whole;
}

// What a checkpoint must hold: masters and reference. Any stage takes over from any other.
TEST(DeltaReference, CarriesARunOnBitForBit) {
  const auto list = references(2);
  for (const auto& from : list) {
    Experiment e{.scheme = from.request, .config = sgd_config(), .steps = 5};
    State saved;
    WeightReference reference;
    e.before_step = [&](Engine& engine, int step) {
      if (step != 2) return;
      State state = engine.gather_state();
      WeightReference found = engine.gather_reference();
      if (state.empty()) return;
      saved = masters(state);
      reference = std::move(found);
    };
    const Results whole = run(e);
    for (const auto& to : list) {
      SCOPED_TRACE(testing::Message() << from.name << " to " << to.name);
      Experiment resumed{.scheme = to.request, .config = sgd_config(), .steps = 5};
      resumed.before_step = [&](Engine& engine, int step) {
        if (step == 2) engine.load_masters(saved, &reference);
      };
      std::atomic<std::uint64_t> exact{99};  // Every rank says it.
      resumed.at_end = [&](Engine& engine) { exact = engine.unreferenced_gathers(); };
      expect_same(whole, run(resumed));
      EXPECT_EQ(exact, 0U);
      // Without the reference it is another run, which says so.
      resumed.before_step = [&](Engine& engine, int step) {
        if (step == 2) engine.load_masters(saved);
      };
      EXPECT_NE(run(resumed)[0].hashes.back(), whole[0].hashes.back());
      EXPECT_EQ(exact, 3U);  // The two-dimensional tensors, once.
    }
  }
}

TEST(DeltaReference, IsRenewedByOneExactGatherAfterAnEdit) {
  for (const auto& scheme : references(2)) {
    SCOPED_TRACE(scheme.name);
    Experiment e{.scheme = scheme.request,
                 .config = delta_config("delta|int4:block=20"),
                 .model = [](int) { return matrix_and_bias(); },
                 .steps = 4};
    State edited{std::vector<float>(320), std::vector<float>(24, 0.25F)};
    double sum = 24 * 0.25;
    for (std::size_t i = 0; i < 320; ++i) {
      edited[0][i] = static_cast<float>(i % 13) / 64;  // Exact in sums.
      sum += edited[0][i];
    }
    std::atomic<std::uint64_t> before{99}, after{99};
    std::atomic<double> deployed{0};
    e.before_step = [&](Engine& engine, int step) {
      if (step != 2) return;
      engine.evaluate(5);  // Another mode of the store, which an edit must survive.
      before = engine.unreferenced_gathers();
      engine.load_masters(edited);
      deployed = engine.evaluate(5, true);
    };
    e.at_end = [&](Engine& engine) { after = engine.unreferenced_gathers(); };
    const Results results = run(e);
    EXPECT_EQ(before, 0U);
    EXPECT_EQ(after, 1U);
    EXPECT_EQ(results[0].steps[2].loss, sum);  // Not a bit of the edit is lost,
    EXPECT_EQ(deployed, sum);
    if (scheme.request.stage == 3) {
      EXPECT_EQ(weights_on(results, 2, 1), (quant::WireBytes{.exact = 4 * (320 + 24)}));
    }
    EXPECT_GT(weights_on(results, 3, 1).payload, 0U);  // and differences go on from it.
  }
}

TEST(DeltaReference, IsRefusedWhereItDoesNotFit) {
  const auto error = [](EngineConfig config, const std::function<void(Engine&)>& call) {
    Experiment e{.scheme = at_stage(2), .config = std::move(config), .steps = 1};
    e.at_end = call;
    return error_of<UsageError>([&] { run(e); });
  };
  State state;
  const auto model = tied_mlp();
  for (const auto& t : model->tensors()) state.emplace_back(t.numel);
  WeightReference reference{std::vector<std::int64_t>(state.size(), 0), state};
  using testing::HasSubstr;
  EXPECT_THAT(error(toy_config(), [](Engine& e) { e.gather_reference(); }), HasSubstr("delta"));
  const auto load = [&](Engine& e) { e.load_masters(state, &reference); };
  EXPECT_THAT(error(toy_config(), load), HasSubstr("delta"));
  reference.tensors[0].pop_back();
  EXPECT_THAT(error(delta_config(), load), HasSubstr("wte.weight"));
  reference.versions.pop_back();
  EXPECT_THAT(error(delta_config(), load), HasSubstr("versions"));
}

}  // namespace
}  // namespace zeropp::test
