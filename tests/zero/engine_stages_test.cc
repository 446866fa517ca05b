// Laws 1 and 2: what must not change a single bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "quant/rng.h"
#include "tests/support/spawn.h"
#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Algorithm;
using hierarchy::Topology;
using quant::Dtype;

struct Shape {
  int nodes, per_node;
  Algorithm algorithm;
  Dtype dtype, accum;
  int gas;
  bool tied;
  friend std::ostream& operator<<(std::ostream& out, const Shape& s) {
    return out << s.nodes << "x" << s.per_node << "_" << hierarchy::name(s.algorithm) << "_"
               << quant::name(s.dtype) << "_" << quant::name(s.accum) << "_gas" << s.gas
               << (s.tied ? "_tied" : "_untied");
  }
  Experiment experiment() const {
    EngineConfig c = toy_config();
    c.algorithm = algorithm;
    c.grad_accum = accum;
    c.wire = dtype;
    c.gas = gas;
    c.clip = 0.1;
    c.check_replicas = true;
    if (dtype == Dtype::kF16) c.loss_scale = {.enabled = true, .initial_scale_power = 8};
    // A rank's branch is active in two of four micro-steps, not the same on all ranks.
    const auto model = [dtype = dtype, tied = tied](int rank) {
      return tied_mlp({.tied = tied, .dtype = dtype, .branch = [rank](int pass) {
                         return pass % 2 != rank % 2 || rank == 3;
                       }});
    };
    return {.topology = Topology::two_level(nodes, per_node),
            .config = c,
            .model = model,
            .steps = 3};
  }
};

class Stages : public testing::TestWithParam<Shape> {};

TEST_P(Stages, AreEqualToTheBitWhenReducedEveryMicroStep) {
  const Shape& p = GetParam();
  Experiment e = p.experiment();
  const int n = e.topology.ranks();
  const bool hierarchical = p.algorithm == Algorithm::kHierarchical && p.per_node > 1;
  const auto list =
      hierarchical ? schemes(p.per_node, "micro_step") : exact_schemes(n, "micro_step");
  Results first;
  for (const auto& scheme : list) {
    SCOPED_TRACE(scheme.name);
    e.scheme = scheme.request;
    const Results results = run(e);
    if (first.empty()) first = results;
    expect_same(first, results);
    EXPECT_EQ(results[0].applied, 3U);
    EXPECT_GT(results[0].steps[2].grad_norm, 0.1);  // Clipping acts.
  }
}

TEST_P(Stages, ZeroAndOneAreEqualAtTheBoundary) {
  Experiment e = GetParam().experiment();
  Results first;
  for (const auto& scheme : exact_schemes(1, "")) {
    if (scheme.request.stage > 1) continue;
    SCOPED_TRACE(scheme.name);
    e.scheme = scheme.request;
    const Results results = run(e);
    if (first.empty()) first = results;
    expect_same(first, results);
  }
}

constexpr auto kF32 = Dtype::kF32;
constexpr auto kBF16 = Dtype::kBF16;
constexpr auto kF16 = Dtype::kF16;
INSTANTIATE_TEST_SUITE_P(
    Shapes, Stages,
    testing::Values(Shape{1, 1, Algorithm::kRing, kF32, kF32, 4, true},
                    Shape{1, 2, Algorithm::kRing, kF32, kF32, 1, true},
                    Shape{2, 2, Algorithm::kRing, kF32, kF32, 4, true},
                    Shape{1, 3, Algorithm::kAllToAll, kF32, kF32, 4, true},
                    Shape{2, 2, Algorithm::kHierarchical, kF32, kF32, 4, true},
                    Shape{2, 2, Algorithm::kHierarchical, kF32, kF32, 1, false},
                    Shape{2, 4, Algorithm::kHierarchical, kBF16, kBF16, 4, true},
                    Shape{2, 4, Algorithm::kHierarchical, kBF16, kF32, 4, false},
                    Shape{2, 4, Algorithm::kAllToAll, kBF16, kF32, 1, true},
                    Shape{4, 2, Algorithm::kRing, kBF16, kBF16, 4, true},
                    Shape{3, 2, Algorithm::kHierarchical, kF16, kF16, 4, true},
                    Shape{3, 2, Algorithm::kRing, kF16, kF32, 1, true}),
    [](const auto& test) { return testing::PrintToString(test.param); });

// Without codecs an algorithm or a split of ranks may move a result within rounding, no more.
TEST(Algorithms, AgreeWithinRounding) {
  for (const auto& scheme : schemes(2)) {
    SCOPED_TRACE(scheme.name);
    State first;
    for (const auto algorithm :
         {Algorithm::kHierarchical, Algorithm::kAllToAll, Algorithm::kRing}) {
      Experiment e{.scheme = scheme.request, .config = toy_config(), .gradients = true};
      e.topology = Topology::two_level(3, 2);
      e.config.algorithm = algorithm;
      const State gradients = run(e)[0].gradients;
      if (first.empty()) first = gradients;
      for (std::size_t t = 0; t < first.size(); ++t) {
        ASSERT_EQ(gradients[t].size(), first[t].size());
        for (std::size_t i = 0; i < first[t].size(); ++i) {
          EXPECT_NEAR(gradients[t][i], first[t][i], 1e-5) << hierarchy::name(algorithm);
        }
      }
    }
  }
}

/// Law 2 is about codecs too: stochastic ones, so that a wrong key shows.
EngineConfig coded_config() {
  EngineConfig c = toy_config();
  c.gas = 2;
  quantize_weights(c, "int8:block=16,rounding=stochastic");
  quantize_gradients(c, 2, "int4:block=16,rounding=stochastic");
  c.check_replicas = true;
  return c;
}

TEST(Codecs, StagesThatGatherWeightsAreEqualToTheBit) {
  for (const auto algorithm : {Algorithm::kHierarchical, Algorithm::kAllToAll}) {
    Experiment e{.topology = Topology::two_level(2, 4), .config = coded_config(), .steps = 3};
    e.config.algorithm = algorithm;
    Results first;
    for (const auto& scheme : exact_schemes(4)) {
      if (scheme.request.stage == 0) continue;
      SCOPED_TRACE(scheme.name);
      e.scheme = scheme.request;
      const Results results = run(e);
      if (first.empty()) first = results;
      expect_same(first, results);
    }
    // The codecs really act.
    e.config.weight_codec = nullptr;
    const Results exact_weights = run(e);
    EXPECT_NE(exact_weights[0].hashes, first[0].hashes);
    e.config.grad_codecs.clear();
    EXPECT_NE(run(e)[0].hashes, exact_weights[0].hashes);
  }
}

TEST(Codecs, QgzIsTheSameInEveryStage) {
  Experiment e{.topology = Topology::two_level(2, 4), .config = coded_config(), .steps = 3};
  e.config.weight_codec = nullptr;
  Results first;
  for (const auto& scheme : exact_schemes(2)) {
    SCOPED_TRACE(scheme.name);
    e.scheme = scheme.request;
    const Results results = run(e);
    if (first.empty()) first = results;
    expect_same(first, results);
  }
}

TEST(Secondary, OnEqualsOffForEveryGroupSize) {
  for (const bool coded : {false, true}) {
    Experiment e{.topology = Topology::two_level(2, 4),
                 .scheme = at_stage(3),
                 .config = coded ? coded_config() : toy_config(),
                 .steps = 4};
    const Results off = run(e);
    for (const int group : {1, 2, 4, 8}) {
      SCOPED_TRACE(testing::Message() << "group " << group << " coded " << coded);
      e.scheme.secondary = group;
      expect_same(off, run(e));
    }
  }
}

TEST(Buckets, ChangeNoBit) {
  const std::uint64_t numel = elements(*tied_mlp());
  for (const bool coded : {false, true}) {
    for (const auto& scheme : schemes(2)) {
      if (coded && scheme.request.stage == 0) continue;
      SCOPED_TRACE(testing::Message() << scheme.name << " coded " << coded);
      Experiment e{.scheme = scheme.request, .config = coded ? coded_config() : toy_config()};
      e.config.gas = 2;
      Results first;
      for (const std::uint64_t bucket :
           {std::uint64_t{1}, std::uint64_t{7}, numel, 10 * numel}) {
        SCOPED_TRACE(testing::Message() << "bucket " << bucket);
        e.config.reduce_bucket = e.config.gather_bucket = bucket;
        const Results results = run(e);
        if (first.empty()) first = results;
        expect_same(first, results);
        EXPECT_EQ(sent(results, {.role = quant::Role::kGradient}),
                  sent(first, {.role = quant::Role::kGradient}));
      }
    }
  }
}

TEST(Prefetch, ChangesNoBitAndNoByte) {
  for (const bool coded : {false, true}) {
    for (const int secondary : {0, 2, 4}) {
      SCOPED_TRACE(testing::Message() << "secondary " << secondary << " coded " << coded);
      Experiment e{.scheme = hpz(secondary),
                   .config = coded ? coded_config() : toy_config(),
                   .steps = 3};
      e.config.gas = 2;
      Results first;
      for (const std::uint64_t prefetch : {0, 40, 80, 1000000}) {
        SCOPED_TRACE(testing::Message() << "prefetch " << prefetch);
        e.config.prefetch = prefetch;
        const Results results = run(e);
        if (first.empty()) first = results;
        expect_same(first, results);
        for (int link : {0, 1}) {
          EXPECT_EQ(sent(results, {.role = quant::Role::kWeight, .link = link}),
                    sent(first, {.role = quant::Role::kWeight, .link = link}));
        }
      }
    }
  }
}

// A secondary that is read before it is cut, a race of other systems, needs slow ranks to show.
TEST(Prefetch, SurvivesRanksThatLag) {
  Experiment e{.scheme = hpz(2), .config = coded_config(), .steps = 2};
  const Results calm = run(e);
  e.options.on_exchange = [](int rank, const hierarchy::CallInfo&, std::uint64_t sequence) {
    const quant::Philox random({.seed = static_cast<std::uint64_t>(rank)});
    std::this_thread::sleep_for(std::chrono::microseconds(random.word(sequence) % 100));
  };
  for (const Launch& launch : launches()) {
    SCOPED_TRACE(launch.name);
    const auto hook = e.options.on_exchange;
    e.options = launch.options;
    e.options.on_exchange = hook;
    expect_same(calm, run(e));
  }
}

/// Fewer elements than ranks, none at all, sizes that divide by nothing, a third of a node.
TEST(TinyTensors, TrainInEveryScheme) {
  struct World {
    Topology topology;
    int group;
    std::vector<std::vector<std::size_t>> shapes;
  };
  const std::vector<World> worlds{
      {Topology::two_level(2, 4), 4, {{1}, {1}, {1}}},
      {Topology::two_level(1, 2), 2, {{8, 0, 24}, {3}}},
      {Topology::two_level(1, 8), 2, {{3}, {4, 0}, {2, 2}}},
      {Topology::two_level(3, 2), 2, {{5, 7}, {1, 1}, {3}}},
      {Topology::two_level(3, 8), 8, {{1000}, {10, 100}, {0}}},
  };
  for (std::size_t w = 0; w < worlds.size(); ++w) {
    for (const bool coded : {false, true}) {
      ConstantModelConfig config;
      for (std::size_t t = 0; t < worlds[w].shapes.size(); ++t) {
        config.tensors.push_back(toy_tensor("t" + std::to_string(t), worlds[w].shapes[t]));
      }
      config.gradient = [](const GradPoint& p) { return 1.0F + static_cast<float>(p.tensor); };
      Experiment e{.topology = worlds[w].topology, .config = toy_config()};
      e.model = [&](int) { return constant_model(config); };
      Results first;
      for (const auto& scheme : schemes(worlds[w].group)) {
        SCOPED_TRACE(testing::Message()
                     << "world " << w << " " << scheme.name << " coded " << coded);
        e.scheme = scheme.request;
        e.config = coded ? coded_config() : toy_config();
        // 1-D tensors travel coded too here.
        e.config.exact_grads.one_d = e.config.exact_weights.one_d = false;
        if (scheme.request.stage == 0) e.config.weight_codec = nullptr;
        const Results results = run(e);
        EXPECT_EQ(results[0].skipped, 0U);
        // A constant gradient survives every codec, and Adam's first steps are lr each.
        const auto& state = results[0].state;
        for (std::size_t t = 0; t < state.size(); ++t) {
          const std::size_t n = config.tensors[t].numel;
          ASSERT_EQ(state[t].size(), 3 * n);
          for (std::size_t i = n; i < 2 * n; ++i) {
            EXPECT_NEAR(state[t][i], (1 - 0.9 * 0.9) * (1.0 + static_cast<double>(t)), 1e-5);
          }
        }
        if (coded) continue;
        if (first.empty()) first = results;
        EXPECT_EQ(first[0].hashes, results[0].hashes);
      }
    }
  }
}

// A weight edit in mid-run: the old secondary must not be seen again.
TEST(LoadMasters, MakesTheSecondaryStale) {
  State edited;
  const auto model = tied_mlp();
  for (const auto& t : model->tensors()) {
    edited.emplace_back(t.numel);
    for (std::size_t i = 0; i < t.numel; ++i) {
      edited.back()[i] = 0.01F * static_cast<float>(i % 17) - 0.05F;
    }
  }
  for (const bool coded : {false, true}) {
    Results first;
    for (const int secondary : {0, 2, 4}) {
      SCOPED_TRACE(testing::Message() << "secondary " << secondary << " coded " << coded);
      Experiment e{.scheme = hpz(secondary),
                   .config = coded ? coded_config() : toy_config(),
                   .steps = 4};
      e.before_step = [&](Engine& engine, int step) {
        if (step == 2) engine.load_masters(edited);
      };
      const Results results = run(e);
      if (first.empty()) first = results;
      expect_same(first, results);
      // The forward after the edit gathers over the world, as after a step.
      EXPECT_EQ(sent_in_step(results, 2, {.role = quant::Role::kWeight, .link = 1}),
                sent_in_step(results, 1, {.role = quant::Role::kWeight, .link = 1}));
    }
    if (coded) continue;  // Other versions, other random numbers.
    // The first loss is that of the edited weights: as if they had never been others.
    Experiment e{.scheme = at_stage(3), .config = toy_config(), .steps = 3};
    e.before_step = [&](Engine& engine, int) { engine.load_masters(edited); };
    EXPECT_EQ(run(e)[0].steps[2].loss, first[0].steps[2].loss);
  }
}

}  // namespace
}  // namespace zeropp::test
