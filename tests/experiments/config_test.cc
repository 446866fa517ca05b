// The config parser: what a key means, and what every mistake says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/key_table.h"
#include "experiments/run_config.h"
#include "tests/experiments/config_support.h"

namespace zeropp::experiments {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Config, DefaultsAreDeepSpeeds) {
  const VariantConfig v = parse_one(kSmall);
  EXPECT_EQ(v.name, "main");
  EXPECT_TRUE(v.baseline);
  EXPECT_EQ(v.engine.policy.stage, 0);
  EXPECT_EQ(v.engine.clip, 1.0);
  EXPECT_EQ(v.engine.reduce_bucket, 500'000'000u);
  EXPECT_EQ(v.engine.prefetch, 50'000'000u);
  EXPECT_EQ(v.engine.gas, 1);
  EXPECT_EQ(v.model.dtype, quant::Dtype::kF32);
  EXPECT_EQ(v.engine.wire, quant::Dtype::kF32);
  EXPECT_EQ(v.engine.algorithm, hierarchy::Algorithm::kRing);
  EXPECT_EQ(v.engine.optimizer.kind, zero::OptimizerKind::kAdamW);
  EXPECT_EQ(v.weight_codec, "exact");
  EXPECT_THAT(v.gradient_codecs, ElementsAre("exact", "exact"));
  EXPECT_EQ(v.secondary, "none");
}

TEST(Config, PrecisionSetsWireAndAccumulation) {
  const VariantConfig bf16 = parse_one(with(R"("bf16": {"enabled": true})"));
  EXPECT_EQ(bf16.engine.wire, quant::Dtype::kBF16);
  EXPECT_EQ(bf16.engine.grad_accum, quant::Dtype::kBF16);
  EXPECT_FALSE(bf16.engine.loss_scale.enabled);
  const VariantConfig fp16 =
      parse_one(with(R"("fp16": {"enabled": true, "initial_scale_power": 8},
              "communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"})"));
  EXPECT_EQ(fp16.model.dtype, quant::Dtype::kF16);
  EXPECT_EQ(fp16.engine.wire, quant::Dtype::kF32);
  EXPECT_EQ(fp16.engine.grad_accum, quant::Dtype::kF32);
  EXPECT_TRUE(fp16.engine.loss_scale.enabled);
  EXPECT_EQ(fp16.engine.loss_scale.initial_scale_power, 8);
}

TEST(Config, ProductRuleInfersTheThird) {
  struct Case {
    const char* text;
    int micro, gas;
  };
  for (const Case& c :
       {Case{R"({"train_batch_size": 48, "gradient_accumulation_steps": 3})", 2, 3},
        Case{R"({"train_batch_size": 48,
                                 "train_micro_batch_size_per_gpu": 2})",
             2, 3},
        Case{R"({"train_micro_batch_size_per_gpu": 5,
                                 "gradient_accumulation_steps": 4})",
             5, 4},
        Case{R"({"train_batch_size": 48})", 6, 1},
        Case{R"({"train_micro_batch_size_per_gpu": 3})", 3, 1},
        Case{R"({"train_batch_size": "auto",
                                 "train_micro_batch_size_per_gpu": 3,
                                 "gradient_accumulation_steps": "auto"})",
             3, 1}}) {
    const VariantConfig v = parse_one(c.text);
    EXPECT_EQ(v.engine.micro_batch, c.micro) << c.text;
    EXPECT_EQ(v.engine.gas, c.gas) << c.text;
  }
}

TEST(Config, PastedDeepSpeedConfigRuns) {
  // A usual ds_config.json as Hugging Face writes it.
  const VariantConfig v = parse_one(R"({
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
             "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto",
                  "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    "zero_optimization": {
      "stage": 3,
      "offload_optimizer": {"device": "none", "pin_memory": true},
      "offload_param": {"device": "none"},
      "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
      "reduce_bucket_size": 5e6, "stage3_prefetch_bucket_size": "auto",
      "stage3_param_persistence_threshold": 1e5, "stage3_max_live_parameters": 1e9,
      "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true,
      "zero_quantized_weights": true, "zero_hpz_partition_size": 4,
      "zero_quantized_gradients": true},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "steps_per_print": 2000, "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 1, "wall_clock_breakdown": false})");
  EXPECT_EQ(v.engine.policy.stage, 3);
  EXPECT_EQ(v.engine.policy.secondary, 4);
  EXPECT_EQ(v.secondary, "node");
  EXPECT_EQ(v.engine.reduce_bucket, 5'000'000u);
  EXPECT_EQ(v.engine.prefetch, 50'000'000u);
  EXPECT_EQ(v.weight_codec, "int8:block=2048");
  EXPECT_EQ(v.gradient_codecs.size(), 2u);
  EXPECT_THAT(v.gradient_codecs[0], HasSubstr("int4"));
  EXPECT_EQ(v.engine.algorithm, hierarchy::Algorithm::kHierarchical);
  EXPECT_EQ(v.engine.schedule.type, "WarmupLR");
  EXPECT_EQ(v.engine.optimizer.lr, 0.001);
  EXPECT_THAT(v.ignored_keys,
              testing::IsSupersetOf({"zero_optimization.overlap_comm", "steps_per_print",
                                     "zero_optimization.stage3_param_persistence_threshold",
                                     "wall_clock_breakdown"}));
  EXPECT_THAT(v.ignored_keys, Not(testing::Contains("zero_optimization.stage")));
}

TEST(Config, IgnoredAutoIsUnset) {
  const auto exact = parse_one(with(R"("zeropp": {
      "codecs": {"gradients": "int4"}, "algorithm": "hierarchical",
      "exact": {"weights": {"below": 9}, "gradients": {"patterns": ["nosuch", "wte*"]}}})"));
  EXPECT_THAT(exact.ignored_keys,
              testing::UnorderedElementsAre("zeropp.exact.weights",
                                            "zeropp.exact.gradients.patterns 'nosuch'"));
  EXPECT_THAT(parse_one(with(R"("steps_per_print": "auto", "dump_state": null)")).ignored_keys,
              testing::IsEmpty());
}

TEST(Config, SchemesBecomePolicies) {
  const auto policy = [](const std::string& more) {
    return parse_one(with(more)).engine.policy;
  };
  EXPECT_TRUE(
      policy(R"("zero_optimization": {"stage": 1, "reduce_scatter": false})").all_reduce);
  EXPECT_FALSE(policy(R"("zero_optimization": {"stage": 1})").all_reduce);
  EXPECT_EQ(policy(R"("zero_optimization": {"stage": 3, "mics_shard_size": 4})").scheme,
            "mics");
  EXPECT_EQ(policy(R"("zero_optimization": {"stage": 3, "mics_shard_size": 4})").optimizer, 4);
  EXPECT_EQ(policy(R"("zero_optimization": {"stage": 3},
                      "zeropp": {"hsdp_group": "node"})")
                .params,
            4);
  EXPECT_EQ(policy(R"("zero_optimization": {"stage": 3}, "zeropp": {"hsdp_group": 2})").params,
            2);
  EXPECT_EQ(policy(R"("zeropp": {"reduce_at": "micro_step"})").reduce_at,
            zero::ReduceAt::kMicroStep);
  EXPECT_EQ(
      policy(R"("zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2})").secondary,
      2);
}

TEST(Config, SecondarySizeWithoutALevelKeepsItsNumber) {
  const auto v =
      parse_one(with(R"("zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2})"));
  EXPECT_EQ(v.secondary, "2");
}

TEST(Config, CodecListsAreInnermostFirst) {
  const VariantConfig v = parse_one(with(R"("zero_optimization": {"stage": 3},
                        "zeropp": {"codecs": {"gradients": ["none", "int8:block=64"]}})"));
  ASSERT_EQ(v.engine.grad_codecs.size(), 2u);
  EXPECT_EQ(v.gradient_codecs[0], "identity");
  EXPECT_EQ(v.gradient_codecs[1], "int8:block=64");
}

TEST(Config, LevelsAndCluster) {
  const RunConfig three = parse(with(R"("zeropp": {"cluster": {"levels": [
      {"name": "gpu", "size": 2}, {"name": "rail", "size": 2, "bandwidth_gbs": 25.5},
      {"name": "net", "size": 3}], "preset": "dgx-a100"}})"));
  EXPECT_EQ(three.topology.ranks(), 12);
  EXPECT_EQ(three.topology.level(1).bandwidth_gbs, 25.5);
  EXPECT_EQ(three.preset, "dgx-a100");
  EXPECT_EQ(parse(kSmall).topology.ranks(), 8);
  EXPECT_EQ(parse(kSmall, {"nodes=3"}).topology.ranks(), 3);
}

TEST(Config, OverridesAreDottedAndTyped) {
  const auto run = parse(kSmall, {"cluster.nodes=3", "--cluster.ranks_per_node=2", "steps=7",
                                  "zero_optimization.stage=3", "zeropp.data=some text.txt",
                                  "optimizer.params.lr=5e-4", "bf16.enabled=true",
                                  "codecs.gradients=[\"int8\", \"int4\"]", "width=32"});
  EXPECT_EQ(run.topology.ranks(), 6);
  EXPECT_EQ(run.topology.level(0).fan_out, 2);
  EXPECT_EQ(run.data, "some text.txt");
  const VariantConfig& v = run.variants.at(0);
  EXPECT_EQ(v.steps, 7u);
  EXPECT_EQ(v.engine.policy.stage, 3);
  EXPECT_EQ(v.engine.optimizer.lr, 5e-4);
  EXPECT_EQ(v.model.width, 32);
  EXPECT_EQ(v.engine.grad_codecs.size(), 2u);
}

TEST(Config, OverrideMistakes) {
  EXPECT_THAT(error_of(kSmall, {"steps"}), AllOf(HasSubstr("key=value"), HasSubstr("'steps'")));
  EXPECT_THAT(error_of(kSmall, {"zeropp.stepps=3"}), HasSubstr("did you mean zeropp.steps?"));
  EXPECT_THAT(error_of(kSmall, {"steps=many"}),
              AllOf(HasSubstr("zeropp.steps to be an integer"), HasSubstr("\"many\"")));
  const std::string variants = with(R"("zeropp": {"variants": [{"name": "a", "baseline": true,
                                       "zero_optimization": {"stage": 1}}]})");
  EXPECT_THAT(error_of(variants, {"zero_optimization.stage=3"}),
              HasSubstr("'zero_optimization.stage', which every variant sets"));
}

TEST(Config, VariantsPatchTheBase) {
  const RunConfig run = parse(R"({
    "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3},
    "variants": [{"name": "base", "baseline": true},
                 {"name": "q", "_comment": "free text",
                  "zero_optimization": {"zero_quantized_weights": true}}]})");
  ASSERT_EQ(run.variants.size(), 2u);
  EXPECT_TRUE(run.variants[0].baseline);
  EXPECT_EQ(run.variants[1].engine.policy.stage, 3);
  EXPECT_EQ(run.variants[1].weight_codec, "int8:block=2048");
  EXPECT_EQ(run.variants[0].weight_codec, "exact");
  EXPECT_NE(run.variants[0].hash, run.variants[1].hash);
}

TEST(Config, DifferencesAtStage3AreHierarchicalUnlessAsked) {
  const auto algorithm = [](const std::string& more) {
    return parse_one(with(more)).engine.algorithm;
  };
  const std::string delta = R"("codecs": {"weights": "delta|int4:block=2048"})";
  EXPECT_EQ(algorithm(R"("zero_optimization": {"stage": 3}, "zeropp": {"secondary": "node", )" +
                      delta + "}"),
            hierarchy::Algorithm::kHierarchical);
  EXPECT_EQ(algorithm(R"("zero_optimization": {"stage": 2}, "zeropp": {)" + delta + "}"),
            hierarchy::Algorithm::kRing);
  EXPECT_EQ(algorithm(R"("zero_optimization": {"stage": 3}, "zeropp": {"secondary": "node"})"),
            hierarchy::Algorithm::kRing);
}

TEST(Config, SeedsAreAListOrACount) {
  EXPECT_THAT(parse(with(R"("zeropp": {"seeds": 3})")).seeds, ElementsAre(1u, 2u, 3u));
  EXPECT_THAT(parse(with(R"("zeropp": {"seeds": [7, 0]})")).seeds, ElementsAre(7u, 0u));
}

TEST(Config, HashSeesWhatChangesResultsOnly) {
  const std::string base = parse(kSmall).variants[0].hash;
  EXPECT_EQ(parse(with(R"("_comment": "x", "zeropp": {"workers": 1, "seeds": [9]})"))
                .variants[0]
                .hash,
            base);
  EXPECT_EQ(parse(with(R"("gradient_clipping": 1)")).variants[0].hash, base);
  EXPECT_NE(parse(with(R"("gradient_clipping": 2)")).variants[0].hash, base);
  EXPECT_NE(parse(kSmall, {"zeropp.steps=5"}).variants[0].hash, base);
}

TEST(Config, ResolvedConfigRunsTheSameVariant) {
  namespace fs = std::filesystem;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(ZEROPP_CONFIGS)) {
    SCOPED_TRACE(entry.path());
    const RunConfig run = load_run_config(entry.path().string());
    for (const VariantConfig& v : run.variants) {
      const RunConfig again = parse(job_config(v, 42));
      ASSERT_EQ(again.variants.size(), 1u);
      EXPECT_EQ(again.variants[0].hash, v.hash) << v.resolved << again.variants[0].resolved;
      EXPECT_EQ(again.variants[0].name, v.name);
      EXPECT_THAT(again.seeds, ElementsAre(42u));
    }
    ++files;
  }
  EXPECT_GE(files, 3);
}

TEST(Config, QuickstartRunsOnOtherClusters) {
  const std::string path = std::string(ZEROPP_CONFIGS) + "/quickstart.json";
  for (const auto& [nodes, per_node] : {std::pair{3, 2}, std::pair{2, 2}, std::pair{1, 4}}) {
    const RunConfig run =
        load_run_config(path, {"cluster.nodes=" + std::to_string(nodes),
                               "cluster.ranks_per_node=" + std::to_string(per_node)});
    EXPECT_EQ(run.topology.ranks(), nodes * per_node);
    EXPECT_EQ(run.variants.size(), 7u);
  }
}

TEST(KeyTable, IsConsistent) {
  std::vector<std::string> seen;
  const auto check = [&](std::span<const KeySpec> keys) {
    for (const KeySpec& spec : keys) {
      SCOPED_TRACE(std::string(spec.path));
      EXPECT_THAT(seen, Not(testing::Contains(std::string(spec.path))));
      seen.emplace_back(spec.path);
      const auto dot = spec.path.rfind('.');
      if (dot != std::string_view::npos) {
        EXPECT_NE(find_key(spec.path.substr(0, dot)), nullptr);
      }
      if (!spec.fallback.empty()) {
        EXPECT_FALSE(Json::parse(spec.fallback, nullptr, false).is_discarded());
      }
      if (spec.status == KeyStatus::kRefused) {
        EXPECT_FALSE(spec.note.empty());
      }
    }
  };
  check(deepspeed_keys());
  check(zeropp_keys());
}

}  // namespace
}  // namespace zeropp::experiments
