// Whole toy runs: the summary's schema, counted against predicted bytes, files, resuming.
#include "experiments/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/json_io.h"
#include "experiments/run_lock.h"
#include "experiments/summary.h"
#include "quant/error.h"
#include "tests/experiments/temp_dir.h"
#include "zero/data.h"

namespace zeropp::experiments {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kConfig = R"({
  "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true}, "wall_clock_breakdown": true,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "zero_optimization": {"stage": 3},
  "zeropp": {
    "cluster": {"nodes": 2, "ranks_per_node": 2, "preset": "dgx-a100"},
    "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
    "steps": 3, "seeds": 2, "algorithm": "hierarchical", "workers": 1,
    "eval": {"every": 2, "windows": 4}, "measure": {"gradient_error": true},
    "variants": [
      {"name": "exact", "baseline": true},
      {"name": "all", "zero_optimization": {"zero_quantized_weights": true,
                                            "zero_quantized_gradients": true},
       "zeropp": {"secondary": "node"}}]}})";

class Run : public testing::Test {
 protected:
  int run(const std::vector<std::string>& more = {}) {
    RunOptions options{.config = dir_.write("toy.json", kConfig), .out = dir_.file("out")};
    options.overrides = {"data=" + dir_.corpus()};
    options.overrides.insert(options.overrides.end(), more.begin(), more.end());
    out_.str("");
    err_.str("");
    return run_command(options, out_, err_);
  }
  Json summary() const { return read_json(dir_.path() / "out" / "summary.json"); }
  fs::path job(const std::string& variant, int seed) const {
    return dir_.path() / "out" / variant / ("seed-" + std::to_string(seed));
  }

  TempDir dir_;
  std::ostringstream out_, err_;
};

/// Every key of `schema` is in `value` with the same type; null stands for "undefined".
void expect_schema(const Json& schema, const Json& value, const std::string& path) {
  if (value.is_null()) return;
  if (schema.is_object()) {
    ASSERT_TRUE(value.is_object()) << path;
    for (const auto& [key, inner] : schema.items()) {
      ASSERT_TRUE(value.contains(key)) << path << "." << key;
      expect_schema(inner, value[key], path + "." + key);
    }
  } else if (schema.is_array()) {
    ASSERT_TRUE(value.is_array()) << path;
    for (const Json& item : value) {
      if (!schema.empty()) expect_schema(schema[0], item, path + "[]");
    }
  } else if (schema.is_number()) {
    ASSERT_TRUE(value.is_number()) << path << " = " << value;
  } else {
    ASSERT_EQ(schema.type(), value.type()) << path << " = " << value;
  }
}

TEST_F(Run, SummaryHasTheSchemaOfTheDesign) {
  ASSERT_EQ(run(), 0) << err_.str();
  const Json schema = Json::parse(R"({"schema": 1,
 "program": {"version": "", "git": "", "compiler": "", "cpu": ""},
 "dataset": {"name": "kjv", "sha256": "", "tokens": 0},
 "model": {"parameters": 0},
 "cluster": {"ranks": 8, "levels": [{"name": "node", "size": 4}]},
 "variants": [{
   "name": "zero++", "baseline": false, "stage": 3, "status": "ok",
   "codecs": {"weights": "int8:block=2048", "gradients": ["int4:block=128"]},
   "algorithm": "hierarchical", "secondary": "node",
   "seeds": [{"seed": 1, "status": "ok", "final_train_loss": 0.0, "final_val_loss": 0.0,
              "final_val_loss_deployed": 0.0, "state_sha256": "", "losses_sha256": "",
              "skipped_steps": 0}],
   "loss": {"val_mean": 0.0, "val_sd": 0.0, "diff_to_baseline": 0.0},
   "traffic_per_step": {
      "node": {"bytes_sum": 0, "messages": 0, "bytes_out_max_node": 0},
      "net": {"bytes_sum": 0, "messages": 0, "bytes_out_max_node": 0, "predicted_bytes_sum": 0,
              "by": [{"phase": "", "role": "", "payload": 0, "scale": 0, "padding": 0,
                      "exact": 0}]}},
   "traffic_reduction": {"net": 1.0},
   "memory_per_rank": {"model_state_bytes": 0, "formula_bytes": 0, "peak_bytes": 0,
                       "peak_by_kind": {}},
   "collectives_per_step": 0, "gradient_error": {"nmse": 0.0, "cosine": 1.0},
   "time_per_step_s": {"total": 0.0, "math": 0.0, "communication": 0.0, "codec": 0.0},
   "time_model_s": {"total": 0.0, "exposed_communication": 0.0, "cluster": ""},
   "ignored_keys": [""], "fallbacks": [""]}]})");
  const Json s = summary();
  expect_schema(schema, s, "summary");
  ASSERT_EQ(s["variants"].size(), 2u);
  EXPECT_EQ(s["cluster"]["ranks"], 4);
  for (const Json& v : s["variants"]) {
    EXPECT_EQ(v["status"], "ok");
    EXPECT_EQ(v["seeds"].size(), 2u);
    EXPECT_EQ(v["ignored_keys"], Json::array({"wall_clock_breakdown"}));
    EXPECT_THAT(summary_table(s), HasSubstr(v["name"].get<std::string>() +
                                            ": wall_clock_breakdown has no effect"));
    EXPECT_EQ(v["memory_per_rank"]["model_state_bytes"], v["memory_per_rank"]["formula_bytes"]);
    for (const char* link : {"node", "net"}) {
      EXPECT_EQ(v["traffic_per_step"][link]["bytes_sum"],
                v["traffic_per_step"][link]["predicted_bytes_sum"]);
      std::uint64_t by = 0;
      for (const Json& row : v["traffic_per_step"][link]["by"]) {
        for (const char* key : {"payload", "scale", "padding", "exact"}) {
          by += row[key].get<std::uint64_t>();
        }
      }
      EXPECT_EQ(v["traffic_per_step"][link]["bytes_sum"], by);
    }
    EXPECT_GT(to_double(v["time_model_s"]["total"]), 0);
  }
  const Json& exact = s["variants"][0];
  const Json& all = s["variants"][1];
  EXPECT_EQ(exact["loss"]["diff_to_baseline"], 0.0);
  EXPECT_EQ(exact["traffic_reduction"]["net"], 1.0);
  EXPECT_GT(to_double(all["traffic_reduction"]["net"]), 1.5);
  EXPECT_EQ(exact["gradient_error"]["nmse"], 0.0);
  EXPECT_GT(to_double(all["gradient_error"]["nmse"]), 0);
  EXPECT_LT(to_double(all["gradient_error"]["nmse"]), 0.1);
  EXPECT_EQ(all["secondary"], "node");
  EXPECT_NE(exact["seeds"][0]["state_sha256"], exact["seeds"][1]["state_sha256"]);
  EXPECT_EQ(exact["seeds"][0]["final_val_loss"], exact["seeds"][0]["final_val_loss_deployed"]);
  EXPECT_NE(all["seeds"][0]["final_val_loss"], all["seeds"][0]["final_val_loss_deployed"]);
  EXPECT_THAT(out_.str(), testing::AllOf(HasSubstr("exact"), HasSubstr("baseline")));
  EXPECT_THAT(read_text(dir_.path() / "out" / "summary.md"), HasSubstr("| all |"));
}

TEST_F(Run, MetricsKeepTheBitsOfTheLosses) {
  ASSERT_EQ(run({"seeds=1"}), 0) << err_.str();
  std::istringstream lines(read_text(job("all", 1) / "metrics.jsonl"));
  zero::Sha256 sha;
  std::vector<Json> steps;
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(parse_json(line, "metrics"));
    const double loss = to_double(steps.back()["train/loss"]);
    sha.update(&loss, sizeof loss);
  }
  ASSERT_EQ(steps.size(), 3u);
  const Json seed = summary()["variants"][1]["seeds"][0];
  EXPECT_EQ(sha.hex(), seed["losses_sha256"]);
  EXPECT_EQ(steps[2]["train/loss"], seed["final_train_loss"]);
  EXPECT_EQ(steps[2]["val/loss"], seed["final_val_loss"]);
  EXPECT_TRUE(steps[1].contains("val/loss"));  // "every": 2.
  EXPECT_FALSE(steps[0].contains("val/loss"));
  EXPECT_EQ(steps[2]["step"], 3);
  EXPECT_EQ(steps[2]["tokens"], 3 * 2 * 4 * 16);
}

TEST_F(Run, TheStoredConfigRepeatsTheJob) {
  ASSERT_EQ(run({"seeds=1"}), 0) << err_.str();
  const Json first = summary()["variants"][1]["seeds"][0];
  RunOptions options{.config = (job("all", 1) / "config.json").string(),
                     .out = dir_.file("again")};
  ASSERT_EQ(run_command(options, out_, err_), 0) << err_.str();
  const Json again = read_json(dir_.path() / "again" / "summary.json")["variants"][0];
  EXPECT_EQ(again["name"], "all");
  EXPECT_EQ(again["seeds"][0]["state_sha256"], first["state_sha256"]);
}

TEST_F(Run, FinishedJobsAreKeptAndOthersRedone) {
  ASSERT_EQ(run(), 0) << err_.str();
  const Json before = summary();
  // Would show in the next summary if it were read, and be gone if the job were redone.
  const auto mark = [&](const std::string& variant, int seed) {
    Json result = read_json(job(variant, seed) / "result.json");
    result["final_train_loss"] = 777.0;
    write_atomic(job(variant, seed) / "result.json", to_text(result));
  };
  mark("exact", 1);
  mark("exact", 2);
  mark("all", 1);
  mark("all", 2);
  Json status = read_json(job("exact", 2) / "status.json");
  status["status"] = "running";  // Killed without a chance to say so.
  write_atomic(job("exact", 2) / "status.json", to_text(status));
  write_atomic(job("all", 1) / "status.json", "{");  // Broken.
  fs::remove(job("all", 2) / "result.json");
  ASSERT_EQ(run(), 0) << err_.str();
  const Json after = summary();
  EXPECT_EQ(after["variants"][0]["seeds"][0]["final_train_loss"], 777.0);
  EXPECT_EQ(after["variants"][0]["seeds"][1], before["variants"][0]["seeds"][1]);
  EXPECT_EQ(after["variants"][1]["seeds"], before["variants"][1]["seeds"]);
  EXPECT_THAT(err_.str(), HasSubstr("exact seed 1: already done"));

  // Another config in the same folder: nothing of the old one is taken.
  ASSERT_EQ(run({"gradient_clipping=0.5"}), 0) << err_.str();
  EXPECT_THAT(err_.str(), testing::Not(HasSubstr("already done")));
  EXPECT_NE(summary()["variants"][0]["seeds"][0]["final_train_loss"], 777.0);
}

TEST_F(Run, AnotherProgramsJobsAreRedone) {
  ASSERT_EQ(run({"seeds=1"}), 0) << err_.str();
  const Json before = summary();
  const auto store = [&](const std::string& variant, const auto& change) {
    Json result = read_json(job(variant, 1) / "result.json");
    result["final_train_loss"] = 777.0;
    change(result);
    write_atomic(job(variant, 1) / "result.json", to_text(result));
  };
  store("exact", [](Json& result) { result["program"]["git"] = "0123456"; });
  store("all", [](Json& result) { result.erase("program"); });
  ASSERT_EQ(run({"seeds=1"}), 0) << err_.str();
  EXPECT_THAT(err_.str(), testing::Not(HasSubstr("already done")));
  EXPECT_EQ(summary()["variants"][0]["seeds"], before["variants"][0]["seeds"]);
  EXPECT_EQ(summary()["variants"][1]["seeds"], before["variants"][1]["seeds"]);
  store("exact", [](Json& result) { result["program"]["version"] = "0.0.0"; });
  ASSERT_EQ(run({"seeds=1"}), 0) << err_.str();
  EXPECT_EQ(summary()["variants"][0]["seeds"], before["variants"][0]["seeds"]);
}

TEST_F(Run, JobsWithDamagedFilesAreRedone) {
  ASSERT_EQ(run({"seeds=1"}), 0) << err_.str();
  const Json before = summary()["variants"][1]["seeds"];
  const fs::path path = job("all", 1);
  const Json good = read_json(path / "result.json");
  const auto redone = [&](const std::string& what) {
    ASSERT_EQ(run({"seeds=1"}), 0) << what << err_.str();
    EXPECT_THAT(err_.str(), HasSubstr("exact seed 1: already done")) << what;
    EXPECT_THAT(err_.str(), testing::Not(HasSubstr("all seed 1: already done"))) << what;
    EXPECT_EQ(summary()["variants"][1]["seeds"], before) << what;
  };
  for (const char* key : {"/schema", "/steps", "/seed", "/final_train_loss", "/state_sha256",
                          "/traffic_per_step/net", "/memory_per_rank", "/sent_per_rank/psi",
                          "/time_per_step_s/codec", "/time_model_s", "/routes"}) {
    const Json::json_pointer at(key);
    Json result = good;
    result.at(at.parent_pointer()).erase(at.back());
    write_atomic(path / "result.json", to_text(result));
    redone(key);
    result = good;
    result[at] = Json::array({"unlike"});
    if (at.back() == "routes") result[at] = 1;
    write_atomic(path / "result.json", to_text(result));
    redone(std::string(key) + " of another type");
  }
  write_atomic(path / "result.json", "[]");
  redone("result.json");
  for (const char* file : {"metrics.jsonl", "traffic.jsonl"}) {
    fs::remove(path / file);
    redone(file);
    write_atomic(path / file, "");
    redone(std::string("empty ") + file);
  }
}

TEST_F(Run, AnOldSummaryGoesWhenAJobIsRedone) {
  ASSERT_EQ(run({"seeds=1"}), 0) << err_.str();
  const fs::path out = dir_.path() / "out";
  fs::remove_all(job("all", 1));
  // The job cannot begin before the summary is gone; in its place stays what cannot be removed.
  fs::remove(out / "summary.json");
  fs::create_directories(out / "summary.json" / "in the way");
  EXPECT_THROW(run({"seeds=1"}), std::runtime_error);
  EXPECT_FALSE(fs::exists(job("all", 1) / "config.json"));
  EXPECT_THAT(err_.str(), HasSubstr("all seed 1: "));
}

TEST_F(Run, NonFiniteLossIsAnErrorOfItsJobAlone) {
  const std::string variants =
      R"(variants=[{"name": "good", "baseline": true},
                   {"name": "bad", "optimizer": {"params": {"lr": 1e30}}}])";
  EXPECT_EQ(run({variants, "seeds=1", "steps=6"}), 1);
  const Json s = summary();
  EXPECT_EQ(s["variants"][0]["status"], "ok");
  EXPECT_EQ(s["variants"][1]["status"], "error");
  EXPECT_TRUE(s["variants"][1]["traffic_per_step"].is_null());
  EXPECT_EQ(read_json(job("bad", 1) / "status.json")["status"], "error");
  EXPECT_FALSE(fs::exists(job("bad", 1) / "result.json"));
  EXPECT_THAT(err_.str(),
              testing::ContainsRegex("zeropp: bad seed 1: \\[train\\] expected a finite loss, "
                                     "found -?nan at step [2-6]\n"));
  EXPECT_THAT(read_text(job("bad", 1) / "metrics.jsonl"), HasSubstr("\"train/loss\": \"nan\""));
}

TEST_F(Run, MistakesLeaveNoFolder) {
  EXPECT_THROW(run({"eval.windows=100000"}), UsageError);
  EXPECT_THROW(run({"data=/nowhere/text"}), UsageError);
  EXPECT_THROW(run({"cluster.preset=abacus"}), UsageError);
  EXPECT_FALSE(fs::exists(dir_.path() / "out"));
}

TEST_F(Run, OneAtATimeInAFolder) {
  fs::create_directories(dir_.path() / "out");
  {
    const RunLock other(dir_.path() / "out");
    try {
      run({"seeds=1"});
      FAIL() << "ran beside another run";
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), HasSubstr("no other run is writing, found " + dir_.file("out")));
    }
    EXPECT_FALSE(fs::exists(job("exact", 1)));
  }
  EXPECT_EQ(run({"seeds=1"}), 0) << err_.str();
}

TEST_F(Run, MetricsThatCannotTakeTheirNameFailTheJob) {
  fs::create_directories(job("exact", 1) / "metrics.jsonl" / "in the way");
  EXPECT_EQ(run({"seeds=1"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr((job("exact", 1) / "metrics.jsonl").string()));
  EXPECT_EQ(summary()["variants"][0]["status"], "error");
  EXPECT_EQ(summary()["variants"][1]["status"], "ok");
  EXPECT_FALSE(fs::exists(job("exact", 1) / "metrics.jsonl.part"));
  EXPECT_EQ(read_json(job("exact", 1) / "status.json")["status"], "error");
  EXPECT_FALSE(fs::exists(job("exact", 1) / "result.json"));
}

TEST_F(Run, AJobThatCannotBeginSaysWhy) {
  fs::create_directories(job("exact", 1) / "metrics.jsonl.part" / "in the way");
  fs::create_directories(job("all", 1) / "status.json" / "in the way");
  EXPECT_EQ(run({"seeds=1"}), 1);
  EXPECT_THAT(err_.str(),
              testing::AllOf(HasSubstr("zeropp: exact seed 1: [output]"),
                             HasSubstr((job("exact", 1) / "metrics.jsonl.part").string()),
                             HasSubstr("zeropp: all seed 1: [output]"),
                             HasSubstr((job("all", 1) / "status.json").string())));
  EXPECT_EQ(read_json(job("exact", 1) / "status.json")["status"], "error");
  EXPECT_EQ(summary()["variants"][1]["status"], "error");
}

TEST(RunFolder, IsNamedAfterConfigAndHash) {
  EXPECT_EQ(default_out("quickstart", "0123456789abcdef"), "results/runs/quickstart-01234567");
}

}  // namespace
}  // namespace zeropp::experiments
