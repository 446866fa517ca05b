// What predict_step says is what the ledger counts, to the byte and message, on every link
// class.
#include "experiments/predict.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "experiments/job.h"
#include "experiments/traffic_report.h"

namespace zeropp::experiments {
namespace {

struct PredictCase {
  std::string name;
  std::vector<std::string> overrides;
  bool skips = false;  ///< Some steps must have been skipped.
  friend std::ostream& operator<<(std::ostream& os, const PredictCase& c) {
    return os << c.name;
  }
};

const zero::Dataset& text() {
  static const zero::Dataset data = [] {
    zero::Dataset d;
    d.name = "words";
    for (int i = 0; i < 6000; ++i) {
      d.bytes.push_back(static_cast<std::uint8_t>('a' + i * i % 23 % 7));
    }
    d.train_bytes = 5000;
    return d;
  }();
  return data;
}

class Predict : public testing::TestWithParam<PredictCase> {};

TEST_P(Predict, EqualsTheLedger) {
  auto overrides = GetParam().overrides;
  overrides.insert(overrides.begin(), {"width=20", "heads=2", "context=8", "steps=3",
                                       "workers=1", "eval.windows=2", "layers=2"});
  const RunConfig run =
      parse_run_config(R"({"train_micro_batch_size_per_gpu": 1})", "test.json", overrides);
  const VariantConfig& variant = run.variants[0];
  const std::atomic<int> stop{0};
  const JobOutcome outcome = run_job(run, variant, 5, text(), stop, [](const StepRecord&) {});
  const auto model = zero::make_gpt(variant.model);
  const Json traffic = traffic_per_step(run, variant, *model, outcome);
  for (const auto& [link, t] : traffic.items()) {
    EXPECT_EQ(t["bytes_sum"], t["predicted_bytes_sum"]) << link;
    EXPECT_EQ(t["messages"], t["predicted_messages"]) << link;
  }
  std::uint64_t skipped = 0, collectives = 0;
  bool valid = starts_with_secondary(variant.engine);
  for (const StepRecord& step : outcome.steps) {
    const bool applied = !step.result.skipped;
    skipped += applied ? 0 : 1;
    collectives +=
        predict_step(run.topology, *model, variant.engine, {valid, applied}).collectives;
    valid = !applied;
  }
  EXPECT_EQ(collectives, outcome.collectives);
  EXPECT_EQ(skipped > 0, GetParam().skips);
}

const std::string kStage3 = "zero_optimization.stage=3";
const std::string kHier = "algorithm=hierarchical";
const std::string kGas = "gradient_accumulation_steps=3";
const std::string kDelta = "codecs.weights=delta|int4:block=32";
const PredictCase kCases[] = {
    {"stage0", {"nodes=2", "ranks_per_node=2"}},
    {"stage0_micro", {"nodes=3", "ranks_per_node=2", "reduce_at=micro_step", kGas}},
    {"stage1",
     {"nodes=2", "ranks_per_node=3", "zero_optimization.stage=1", "bf16.enabled=true"}},
    {"stage1_3psi",
     {"nodes=2", "ranks_per_node=2", "zero_optimization.stage=1", "stage1_all_reduce=true",
      kGas}},
    {"stage2_buckets",
     {"nodes=2", "ranks_per_node=2", "zero_optimization.stage=2", kGas,
      "zero_optimization.reduce_bucket_size=500", "zero_optimization.allgather_bucket_size=1"}},
    {"stage3_ring", {"nodes=2", "ranks_per_node=2", kStage3, kGas, "tied=false"}},
    {"stage3_direct", {"nodes=2", "ranks_per_node=2", kStage3, "algorithm=all_to_all"}},
    {"stage3_levels",
     {R"(cluster.levels=[{"name":"a","size":2},{"name":"b","size":2},{"name":"c","size":3}])",
      kStage3, kHier, R"(codecs.gradients=["int8:block=16","int4:block=32","int8:block=64"])"}},
    {"hpz", {"nodes=2", "ranks_per_node=3", kStage3, "secondary=node", kGas}},
    {"zeropp",
     {"nodes=3", "ranks_per_node=2", kStage3, "secondary=node", kGas, "bf16.enabled=true",
      "zero_quantized_weights=true", "zero_quantized_gradients=true"}},
    {"hpz_skips",
     {"nodes=2", "ranks_per_node=2", kStage3, "secondary=node", "fp16.enabled=true",
      "fp16.initial_scale_power=60", "zero_quantized_weights=true"},
     true},
    {"qwz_stage2_skips",
     {"nodes=2", "ranks_per_node=2", "zero_optimization.stage=2", "fp16.enabled=true",
      "fp16.initial_scale_power=60", "zero_quantized_weights=true"},
     true},
    {"delta_stage1", {"nodes=2", "ranks_per_node=3", "zero_optimization.stage=1", kDelta}},
    {"delta_stage2_skips",
     {"nodes=2", "ranks_per_node=2", "zero_optimization.stage=2", "fp16.enabled=true",
      "fp16.initial_scale_power=60", kDelta},
     true},
    {"delta", {"nodes=2", "ranks_per_node=3", kStage3, "secondary=node", kGas, kDelta}},
    {"delta_zeropp",
     {"nodes=3", "ranks_per_node=2", kStage3, "secondary=node", kGas, "bf16.enabled=true",
      kDelta, "zero_quantized_gradients=true"}},
    {"delta_untied_levels",
     {R"(cluster.levels=[{"name":"a","size":2},{"name":"b","size":2},{"name":"c","size":3}])",
      kStage3, "secondary=b", kDelta, "model.tied=false"}},
    {"delta_skips",
     {"nodes=2", "ranks_per_node=2", kStage3, "secondary=node", "fp16.enabled=true",
      "fp16.initial_scale_power=60", kDelta},
     true},
    {"hsdp", {"nodes=2", "ranks_per_node=2", kStage3, "hsdp_group=node", kHier, kGas}},
    {"hsdp_coded",
     {"nodes=2", "ranks_per_node=2", kStage3, "hsdp_group=node",
      "codecs.gradients=int8:block=32"}},
    {"mics", {"nodes=2", "ranks_per_node=2", kStage3, "mics_shard_size=2", kHier, kGas}},
    {"mics_micro",
     {"nodes=2", "ranks_per_node=2", kStage3, "mics_shard_size=2", "reduce_at=micro_step"}},
    {"powersgd_ring",
     {"nodes=2", "ranks_per_node=2", "codecs.gradients=powersgd:rank=2", "algorithm=ring"}},
    {"powersgd_stage2",
     {"nodes=3", "ranks_per_node=2", "zero_optimization.stage=2", kGas, "bf16.enabled=true",
      "codecs.gradients=powersgd:rank=3", "zero_optimization.reduce_bucket_size=500"}},
    {"powersgd_stage3_skips",
     {"nodes=2", "ranks_per_node=3", kStage3, "secondary=node", kGas, "fp16.enabled=true",
      "fp16.initial_scale_power=60", "codecs.gradients=powersgd",
      "zero_quantized_weights=true"},
     true},
    {"powersgd_hsdp",
     {"nodes=2", "ranks_per_node=2", kStage3, "hsdp_group=node",
      "codecs.gradients=powersgd:rank=1"}},
    {"topk", {"nodes=2", "ranks_per_node=2", kStage3, "codecs.gradients=topk:ratio=0.1"}},
    {"sign_codebook",
     {"nodes=2", "ranks_per_node=2", kStage3, "codecs.weights=codebook",
      R"(codecs.gradients=["codebook:block=100","sign:block=64"])"}},
    {"one_level", {R"(cluster.levels=[{"name":"gpu","size":4}])", kStage3}},
    {"one_rank", {"nodes=1", "ranks_per_node=1", kStage3}},
};
// Variable rate: the prediction is an upper bound, and what travels is exact.
TEST(PredictVariable, BoundsTheLedgerAndChangesNoBit) {
  const auto outcome = [](const std::string& codec, Json* traffic) {
    const RunConfig run = parse_run_config(
        R"({"train_micro_batch_size_per_gpu": 1})", "test.json",
        {"width=20", "heads=2", "context=8", "steps=3", "workers=1", "eval.windows=2",
         "nodes=2", "ranks_per_node=2", kStage3, kHier, "bf16.enabled=true",
         "codecs.gradients=" + codec, "codecs.weights=" + codec});
    const std::atomic<int> stop{0};
    const VariantConfig& variant = run.variants[0];
    const JobOutcome done = run_job(run, variant, 5, text(), stop, [](const StepRecord&) {});
    *traffic = traffic_per_step(run, variant, *zero::make_gpt(variant.model), done);
    return done.state_sha256;
  };
  Json exact, coded;
  EXPECT_EQ(outcome("bf16", &exact), outcome("lossless:dtype=bf16", &coded));
  for (const auto& [link, t] : coded.items()) {
    EXPECT_LE(t["bytes_sum"].get<double>(), t["predicted_bytes_sum"].get<double>());
    EXPECT_LT(t["bytes_sum"].get<double>(), exact[link]["bytes_sum"].get<double>());
    EXPECT_EQ(t["messages"], t["predicted_messages"]);
  }
}

TEST(PowerSgdRun, TrainsASmallGpt) {
  const auto losses = [](const std::string& codec) {
    const RunConfig run =
        parse_run_config(R"({"train_micro_batch_size_per_gpu": 1})", "test.json",
                         {"width=20", "heads=2", "context=8", "steps=60", "workers=1",
                          "eval.windows=8", "nodes=2", "ranks_per_node=2", kStage3, kHier,
                          "optimizer.params.lr=0.005", "codecs.gradients=" + codec});
    const std::atomic<int> stop{0};
    const JobOutcome done =
        run_job(run, run.variants[0], 5, text(), stop, [](const StepRecord&) {});
    return std::pair(done.steps.front().result.loss, done.val_loss);
  };
  const auto [start, exact] = losses("none");
  const auto [same_start, compressed] = losses("powersgd:rank=2");
  EXPECT_EQ(start, same_start);
  EXPECT_LT(exact, 0.6 * start);
  EXPECT_LT(compressed, 0.7 * start);
  EXPECT_NE(compressed, exact);
}

INSTANTIATE_TEST_SUITE_P(Cases, Predict, testing::ValuesIn(kCases),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace zeropp::experiments
