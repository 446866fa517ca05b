// Evaluation looks at exact weights and leaves no trace in training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "quant/convert.h"
#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Phase;
using hierarchy::Topology;
using quant::Dtype;
using quant::Role;

/// Stochastic codecs: an extra draw or a version used twice would show.
void quantize(EngineConfig& c, const SchemeRequest& scheme) {
  if (scheme.stage > 0) quantize_weights(c, "int4:block=16,rounding=stochastic");
  quantize_gradients(c, 2, "int4:block=16,rounding=stochastic");
}

TEST(Evaluation, LeavesTrainingUntouched) {
  for (const auto& scheme : schemes(4)) {
    for (const bool coded : {false, true}) {
      SCOPED_TRACE(testing::Message() << scheme.name << " coded " << coded);
      Experiment e{.topology = Topology::two_level(2, 4),
                   .scheme = scheme.request,
                   .config = toy_config(),
                   .steps = 4};
      e.config.gas = 2;
      if (coded) quantize(e.config, scheme.request);
      const Results undisturbed = run(e);
      e.before_step = [](Engine& engine, int step) {
        engine.evaluate(5);
        if (step % 2 == 1) engine.evaluate(20, true);
      };
      const Results evaluated = run(e);
      expect_same(undisturbed, evaluated);
      // The same traffic too: the secondary was neither used up nor renewed.
      for (std::size_t s = 0; s < 4; ++s) {
        for (const int link : {0, 1}) {
          EXPECT_EQ(sent_in_step(undisturbed, s, {.link = link}),
                    sent_in_step(evaluated, s, {.link = link}));
        }
      }
      EXPECT_EQ(sent(evaluated, {.phase = Phase::kEval}), 0U);
      for (const auto& r : evaluated) {
        EXPECT_EQ(sent(r.before, {}), sent(r.before, {.phase = Phase::kEval}));
      }
    }
  }
}

struct Traffic {
  std::uint64_t exact = 0, coded = 0;
};
/// Weight bytes that one evaluation (two passes) sent, summed over ranks.
Traffic eval_traffic(SchemeRequest scheme, bool coded, bool deployed) {
  Experiment e{.topology = Topology::two_level(2, 4),
               .scheme = scheme,
               .config = toy_config(),
               .steps = 2};
  e.model = [](int) { return tied_mlp({.tied = false}); };
  if (coded) quantize_weights(e.config);
  // Before step 1 the secondary of version 0 lies about; version 1 was never gathered.
  e.before_step = [&](Engine& engine, int step) {
    if (step == 1) engine.evaluate(16, deployed);
  };
  Traffic sum;
  const Results results = run(e);
  for (const auto& r : results) {
    for (const auto& entry : r.before.entries()) {
      if (entry.key.call.role != Role::kWeight) continue;
      EXPECT_EQ(entry.key.call.phase, Phase::kEval);
      const auto& bytes = entry.sent.bytes;
      sum.exact += bytes.exact;
      sum.coded += bytes.payload + bytes.scale + bytes.padding;
    }
  }
  return sum;
}

TEST(Evaluation, GathersExactlyAndOverTheWorld) {
  const std::uint64_t world = std::uint64_t{2} * 7 * 4 * elements(*tied_mlp({.tied = false}));
  for (const auto& scheme : schemes(4)) {
    SCOPED_TRACE(scheme.name);
    const auto& r = scheme.request;
    const bool group = r.hsdp_group != 0 || r.mics_group != 0;
    // Whole, exact parameters need no gather; a group's shards none beyond the group.
    const std::uint64_t plain = r.stage < 3 ? 0 : group ? world * 6 / 7 : world;
    EXPECT_EQ(eval_traffic(r, false, false).exact, plain);
    EXPECT_EQ(eval_traffic(r, false, true).exact, plain);
    if (r.stage == 0) continue;
    const Traffic masters = eval_traffic(r, true, false);
    EXPECT_EQ(masters.coded, 0U);
    EXPECT_EQ(masters.exact, group ? world * 6 / 7 : world);
    EXPECT_EQ(eval_traffic(r, true, true).coded > 0, r.stage == 3);
  }
}

/// The constant model's loss is the sum of the weights that its forward saw.
double weight_sum(const State& state, Dtype dtype) {
  double sum = 0;
  for (const auto& tensor : state) {
    for (std::size_t i = 0; i < tensor.size() / 3; ++i) {
      sum += quant::round_to(dtype, tensor[i]);
    }
  }
  return sum;
}

TEST(Evaluation, SeesMastersRoundedToTheParameterDtype) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (const auto& scheme : schemes(4)) {
      if (scheme.request.stage == 0) continue;
      SCOPED_TRACE(testing::Message() << scheme.name << " " << quant::name(dtype));
      Experiment e{.topology = Topology::two_level(2, 4),
                   .scheme = scheme.request,
                   .config = toy_config(),
                   .steps = 3};
      e.model = [dtype](int) {
        return constant_model({.tensors = {toy_tensor("a", {9, 9}), toy_tensor("b", {7})},
                               .dtype = dtype,
                               .gradient = [](const GradPoint& p) {
                                 return 0.1F * static_cast<float>(p.element % 5) - 0.2F;
                               }});
      };
      quantize_weights(e.config, "int4:block=16");
      double exact = 0, deployed = 0;
      e.at_end = [&](Engine& engine) {
        const double x = engine.evaluate(8), y = engine.evaluate(8, true);
        if (engine.state_sha256().empty()) return;  // Rank 0 speaks for all.
        exact = x;
        deployed = y;
      };
      const Results results = run(e);
      const double sum = weight_sum(results[0].state, dtype);
      EXPECT_NEAR(exact, sum, 1e-9);
      EXPECT_GT(std::fabs(deployed - sum), 1e-3);  // Four bits are not the masters.
      EXPECT_TRUE(results[0].deployed);
    }
  }
}

TEST(Evaluation, IsTheSameForAnySplitOfTheWindows) {
  double first = 0;
  for (const int nodes : {1, 2, 3}) {
    for (const int batch : {1, 2, 5}) {
      for (const auto& scheme : schemes(2)) {
        Experiment e{.topology = Topology::two_level(nodes, 2),
                     .scheme = scheme.request,
                     .config = toy_config(),
                     .steps = 0,
                     .hashes = false};
        e.config.micro_batch = batch;
        std::vector<double> losses(static_cast<std::size_t>(2 * nodes));
        std::atomic<std::size_t> next = 0;
        e.at_end = [&](Engine& engine) { losses[next++] = engine.evaluate(13); };
        run(e);
        EXPECT_THAT(losses, testing::Each(losses[0]));  // Every rank knows it.
        if (first == 0) first = losses[0];
        EXPECT_NEAR(losses[0], first, 1e-12) << nodes << " " << batch << " " << scheme.name;
      }
    }
  }
  EXPECT_GT(first, 0);
}

TEST(Evaluation, TakesNoMoreWindowsThanThereAre) {
  const std::uint64_t all = zero::validation_windows(toy_data(), toy_config().seq);
  ASSERT_GT(all, 10U);
  Experiment e{.scheme = at_stage(3), .config = toy_config(), .steps = 0, .hashes = false};
  e.at_end = [&](Engine& engine) {
    EXPECT_EQ(engine.evaluate(all), engine.evaluate(10 * all));
    EXPECT_NE(engine.evaluate(all), engine.evaluate(all - 1));
  };
  run(e);
}

TEST(Deployed, DiffersOnlyWhereACodecIsInUse) {
  for (const auto& scheme : schemes(2)) {
    Experiment e{.scheme = scheme.request, .config = toy_config(), .steps = 1};
    e.at_end = [](Engine& engine) {
      EXPECT_FALSE(engine.has_deployed_weights());
      EXPECT_EQ(engine.evaluate(8), engine.evaluate(8, true));
    };
    run(e);
    if (scheme.request.stage == 0) continue;
    quantize_weights(e.config, "int4:block=16");
    e.at_end = [](Engine& engine) {
      EXPECT_TRUE(engine.has_deployed_weights());
      EXPECT_NE(engine.evaluate(8), engine.evaluate(8, true));
    };
    run(e);
  }
}

}  // namespace
}  // namespace zeropp::test
