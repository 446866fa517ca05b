// Checkpoints: save, load in fresh engines at the same or another N, stage, batch, codec.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "quant/error.h"
#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Topology;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using zero::Checkpoint;

struct Saved {
  Checkpoint checkpoint;
  Results results;
};

/// Runs `e` to its end and saves; rank 0's checkpoint.
Saved save_after(Experiment e) {
  Saved saved;
  e.at_end = [&saved](Engine& engine) {
    Checkpoint c = engine.save();
    if (!c.state.empty()) saved.checkpoint = std::move(c);  // Rank 0 alone.
  };
  saved.results = run(e);
  return saved;
}

struct Loaded {
  Results results;
  std::vector<std::string> notes;  ///< Of rank 0.
};

/// Runs `e` from a checkpoint. Ranks write their own slot: rank 0's engine is the first.
Loaded go_on(Experiment e, const Checkpoint& c) {
  Loaded loaded;
  std::vector<std::vector<std::string>> notes(static_cast<std::size_t>(e.topology.ranks()));
  std::atomic<std::size_t> next{0};
  e.before_step = [&](Engine& engine, int step) {
    if (step == 0) notes[next++] = engine.load(c);
  };
  loaded.results = run(e);
  for (const auto& n : notes) EXPECT_EQ(n, notes[0]);  // All ranks tell the same.
  loaded.notes = notes[0];
  return loaded;
}

/// The last steps of `all` are `tail`, to the bit.
void expect_tail(const Results& all, const Results& tail) {
  const std::size_t skip = all[0].steps.size() - tail[0].steps.size();
  for (std::size_t s = 0; s < tail[0].steps.size(); ++s) {
    EXPECT_EQ(all[0].steps[skip + s].loss, tail[0].steps[s].loss) << "step " << s;
    EXPECT_EQ(all[0].steps[skip + s].grad_norm, tail[0].steps[s].grad_norm) << "step " << s;
    EXPECT_EQ(all[0].steps[skip + s].loss_scale, tail[0].steps[s].loss_scale) << "step " << s;
    EXPECT_EQ(all[0].steps[skip + s].lr, tail[0].steps[s].lr) << "step " << s;
    EXPECT_EQ(all[0].hashes[skip + s], tail[0].hashes[s]) << "step " << s;
  }
  EXPECT_EQ(all[0].skipped, tail[0].skipped);
  EXPECT_EQ(all[0].applied, tail[0].applied);
}

Experiment toy(int stage, Topology topology = Topology::two_level(2, 2)) {
  Experiment e{
      .topology = std::move(topology), .scheme = at_stage(stage), .config = toy_config()};
  e.config.algorithm = hierarchy::Algorithm::kHierarchical;
  return e;
}

TEST(EngineCheckpoint, GoesOnToTheBitWithEveryKindOfState) {
  struct Case {
    const char *weights, *gradients;
    int stage;
  };
  for (const Case& c : {Case{"", "", 3}, Case{"", "ef|int4:block=16", 0},
                        Case{"", "ef(beta=0.8,store=int8)|int4:block=16", 3},
                        Case{"ef|int8:block=16", "loco(reset=2)|hadamard(8)|int4:block=16", 1},
                        Case{"ef21|int8:block=16", "hadamard(8)|ef21|int4:block=16", 2},
                        Case{"delta|int4:block=16", "", 2}}) {
    SCOPED_TRACE(std::string(c.weights) + " / " + c.gradients);
    Experiment e = toy(c.stage);
    if (*c.weights != 0) quantize_weights(e.config, c.weights);
    if (*c.gradients != 0) quantize_gradients(e.config, 2, c.gradients);
    e.steps = 5;
    const Results whole = run(e);
    e.steps = 2;
    const Saved saved = save_after(e);
    e.steps = 3;
    const Loaded loaded = go_on(e, saved.checkpoint);
    EXPECT_THAT(loaded.notes, IsEmpty());
    expect_tail(whole, loaded.results);
  }
}

TEST(EngineCheckpoint, PowerSgdKeepsItsErrors) {
  Experiment e = toy(2);
  e.config.powersgd_rank = 1;
  e.steps = 4;
  const Results whole = run(e);
  e.steps = 2;
  Saved saved = save_after(e);
  const Loaded loaded = go_on(e, saved.checkpoint);
  EXPECT_THAT(loaded.notes, IsEmpty());
  expect_tail(whole, loaded.results);
  for (auto& rank : saved.checkpoint.low_rank) rank.error.assign(rank.error.size(), {});
  EXPECT_NE(go_on(e, saved.checkpoint).results[0].hashes.back(), whole[0].hashes.back());
}

/// Gradients that do not change, in fp16; infinite on rank 1 in one pass (-1: in none).
std::unique_ptr<zero::Model> overflowing(int rank, int bad_pass) {
  ConstantModelConfig c{.tensors = {toy_tensor("matrix", {9, 11}), toy_tensor("bias", {5})},
                        .dtype = quant::Dtype::kF16};
  c.gradient = [=](const GradPoint& p) {
    const bool bad = rank == 1 && p.tensor == 0 && p.element == 3 && p.pass == bad_pass;
    return bad ? std::numeric_limits<float>::infinity()
               : std::sin(static_cast<float>(p.element) + static_cast<float>(7 * rank));
  };
  return constant_model(c);
}

TEST(EngineCheckpoint, LossScaleAndSkippedStepsGoOn) {
  for (const int bad_pass : {0, 1}) {  // Before the last step, and the last step itself.
    Experiment e = toy(3);
    e.model = [=](int rank) { return overflowing(rank, bad_pass); };
    e.config.wire = e.config.grad_accum = quant::Dtype::kF16;
    e.config.loss_scale = {
        .enabled = true, .initial_scale_power = 4, .loss_scale_window = 2, .hysteresis = 1};
    quantize_gradients(e.config, 2, "ef|int4:block=16");
    e.steps = 6;
    const Results whole = run(e);
    ASSERT_EQ(whole[0].skipped, 1U);
    e.steps = 2;
    const Saved saved = save_after(e);
    EXPECT_EQ(saved.checkpoint.skipped, 1U);
    e.steps = 4;
    e.model = [](int rank) { return overflowing(rank, -1); };
    expect_tail(whole, go_on(e, saved.checkpoint).results);
  }
}

/// Fault 43 of other systems: another number of ranks finds empty shards or wrong sizes.
TEST(EngineCheckpoint, AnotherNumberOfRanksGoesOnAsStageZeroWouldThere) {
  Experiment e = toy(3);
  e.steps = 3;
  const Saved saved = save_after(e);
  for (const auto& [nodes, node] : {std::pair{1, 1}, {2, 1}, {3, 1}, {2, 3}, {2, 4}}) {
    SCOPED_TRACE(std::to_string(nodes) + " x " + std::to_string(node));
    Experiment there = toy(3, Topology::two_level(nodes, node));
    there.steps = 3;
    const Loaded sharded = go_on(there, saved.checkpoint);
    there.scheme = at_stage(0);
    there.scheme.reduce_at = "micro_step";
    const Loaded whole = go_on(there, saved.checkpoint);
    expect_same(sharded.results, whole.results);
    EXPECT_THAT(sharded.notes, IsEmpty());
    EXPECT_EQ(sharded.results[0].applied, 6U);
  }
}

TEST(EngineCheckpoint, TheDataGoOnWhereTheyWere) {
  // Another split of the same global batch reads the same samples.
  Experiment e = toy(0, Topology::two_level(1, 4));
  e.config.gas = 1;
  e.steps = 2;
  const Saved saved = save_after(e);
  EXPECT_EQ(saved.checkpoint.samples, 2U * 4 * static_cast<unsigned>(e.config.micro_batch));
  // Half the batch: the first step reads the first half of what step 3 would have read.
  Experiment half = toy(0, Topology::two_level(1, 2));
  half.steps = 2;
  Checkpoint c = saved.checkpoint;
  const Results a = go_on(half, c).results;
  c.samples += 2U * static_cast<unsigned>(half.config.micro_batch);
  c.step += 1;
  Experiment one = half;
  one.steps = 1;
  // The second step of `a` starts where a checkpoint one half-step further on does; only its
  // weights differ, so compare the losses of untrained weights.
  one.config.optimizer.lr = half.config.optimizer.lr = 0;
  const Results still = go_on(half, saved.checkpoint).results;
  const Results later = go_on(one, c).results;
  EXPECT_EQ(still[0].steps[1].loss, later[0].steps[0].loss);
  EXPECT_NE(still[0].steps[0].loss, later[0].steps[0].loss);
  EXPECT_EQ(a[0].steps[0].loss, still[0].steps[0].loss);
}

TEST(EngineCheckpoint, ResidualsAtAnotherNAreTheMeanOfTheirSenders) {
  Experiment e = toy(2);
  quantize_gradients(e.config, 2, "ef|int4:block=16");
  e.steps = 3;
  const Saved saved = save_after(e);
  Experiment there = toy(2, Topology::two_level(3, 2));
  quantize_gradients(there.config, 2, "ef|int4:block=16");
  EXPECT_THAT(go_on(there, saved.checkpoint).notes,
              Contains(HasSubstr("residuals of 4 ranks are their mean")));
  quantize_gradients(there.config, 2, "int4:block=16");
  EXPECT_THAT(go_on(there, saved.checkpoint).notes,
              Contains(HasSubstr("residuals of other codecs are dropped")));
  Experiment low = toy(2, Topology::two_level(3, 2));
  low.config.powersgd_rank = 1;
  EXPECT_THAT(go_on(low, saved.checkpoint).notes, Contains(HasSubstr("dropped")));
}

TEST(EngineCheckpoint, TellsWhatItDoesNotTakeOver) {
  Experiment e = toy(2);
  quantize_weights(e.config, "delta|int4:block=16");
  const Saved saved = save_after(e);
  EXPECT_FALSE(saved.checkpoint.copies.empty());
  EXPECT_THAT(go_on(toy(2), saved.checkpoint).notes, IsEmpty());  // Nothing wants them.
  const Saved exact = save_after(toy(2));
  EXPECT_THAT(go_on(e, exact.checkpoint).notes, Contains(HasSubstr("no reference weights")));
  Experiment sgd = toy(2);
  sgd.config.optimizer = {.kind = zero::OptimizerKind::kSgd, .lr = 0.05};
  const Saved plain = save_after(sgd);
  EXPECT_THAT(go_on(toy(2), plain.checkpoint).notes, Contains(HasSubstr("start at zero")));
  Checkpoint cut = exact.checkpoint;
  cut.state[0].resize(cut.state[0].size() - 3);
  EXPECT_THROW(go_on(toy(2), cut), UsageError);
  cut.state.pop_back();
  EXPECT_THROW(go_on(toy(2), cut), UsageError);
}

}  // namespace
}  // namespace zeropp::test
