// Verdicts of real runs: exact against exact, a known-bad scheme, too few seeds; `zeropp
// compare` on their folders.
#include "experiments/verdict/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/json_io.h"
#include "experiments/runner.h"
#include "quant/error.h"
#include "tests/experiments/temp_dir.h"

namespace zeropp::experiments {
namespace {

using testing::HasSubstr;

constexpr const char* kConfig = R"({
  "train_micro_batch_size_per_gpu": 1,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
  "zero_optimization": {"stage": 2},
  "zeropp": {
    "cluster": {"nodes": 2, "ranks_per_node": 2}, "algorithm": "hierarchical",
    "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
    "steps": 40, "seeds": 6, "eval": {"windows": 20}, "compare": {"margin": 0.03},
    "variants": [
      {"name": "exact", "baseline": true},
      {"name": "aa", "zeropp": {"algorithm": "ring"}},
      {"name": "stage3", "zero_optimization": {"stage": 3}},
      {"name": "bits2", "zeropp": {"codecs": {"gradients": "int2:block=2048"}}},
      {"name": "half", "optimizer": {"params": {"lr": 0.0015}}}]}})";

class Compare : public testing::Test {
 protected:
  Json run(const std::string& out, const std::vector<std::string>& more = {}) {
    RunOptions options{.config = dir_.write("c.json", kConfig), .out = dir_.file(out)};
    options.overrides = {"data=" + dir_.corpus()};
    options.overrides.insert(options.overrides.end(), more.begin(), more.end());
    std::ostringstream printed, err;
    EXPECT_EQ(run_command(options, printed, err), 0) << err.str();
    table_ = printed.str();
    return read_json(dir_.path() / out / "summary.json");
  }
  static std::string verdict(const Json& summary, const std::string& name) {
    for (const Json& v : summary["variants"]) {
      if (v["name"] == name) return v["verdict"]["verdict"];
    }
    return "none";
  }
  Json rows(CompareOptions options) const {
    options.json = true;
    std::ostringstream out;
    EXPECT_EQ(compare_command(options, out), 0);
    return parse_json(out.str(), "compare");
  }
  TempDir dir_;
  std::string table_;
};

TEST_F(Compare, ControlsComeOutAsTheyMust) {
  const Json summary = run("six");
  EXPECT_TRUE(summary["variants"][0]["verdict"].is_null());  // The baseline.
  EXPECT_EQ(verdict(summary, "aa"), "EQUIVALENT");
  EXPECT_EQ(verdict(summary, "stage3"), "EQUIVALENT");
  EXPECT_EQ(verdict(summary, "bits2"), "WORSE");
  EXPECT_EQ(verdict(summary, "half"), "WORSE");
  EXPECT_EQ(summary["comparison"]["margin"], 0.03);
  EXPECT_EQ(summary["comparison"]["seeds"].size(), 6U);
  EXPECT_THAT(table_, HasSubstr("margin 0.03 nats"));
  // Two seeds of the same runs decide nothing about a margin below rounding.
  const Json two = run("two", {"seeds=2", "compare.margin=1e-9"});
  EXPECT_EQ(verdict(two, "aa"), "INCONCLUSIVE");
  EXPECT_EQ(verdict(two, "stage3"), "EQUIVALENT");  // Not one bit differs.
  EXPECT_NE(two["comparison"]["sha256"], summary["comparison"]["sha256"]);
  const Json one = run("one", {"seeds=1"});
  EXPECT_EQ(verdict(one, "bits2"), "INCONCLUSIVE");
  EXPECT_THAT(table_, testing::Not(HasSubstr("INCONCLUSIVE")));  // No table of verdicts.
}

TEST_F(Compare, ReadsFoldersOfResults) {
  const Json summary = run("six");
  const Json all = rows({.a = dir_.file("six")});
  ASSERT_EQ(all.size(), 4U);
  for (std::size_t i = 0; i < all.size(); ++i) {  // As the run itself said.
    const Json& said = summary["variants"][i + 1]["verdict"];
    for (const auto& [key, value] : said.items()) EXPECT_EQ(all[i][key], value) << key;
  }
  EXPECT_EQ(all[1]["identical"], true);  // stage3
  EXPECT_EQ(all[0]["identical"], false);
  EXPECT_EQ(all[0]["equal_work"], true);
  EXPECT_EQ(all[3]["within_this_run_only"].size(), 6U);
  EXPECT_EQ(all[3]["within_this_run_only"][0]["steps"], 40);
  EXPECT_GT(all[3]["within_this_run_only"][0]["largest_difference"].get<double>(), 0.1);

  run("short", {"steps=20", "seeds=4"});
  const Json pair = rows({.a = dir_.file("six") + ":exact", .b = dir_.file("short") + ":half"});
  ASSERT_EQ(pair.size(), 1U);
  EXPECT_EQ(pair[0]["equal_work"], false);
  EXPECT_EQ(pair[0]["unpaired_seeds"], Json::array({5, 6}));
  EXPECT_EQ(rows({.a = dir_.file("six"), .b = dir_.file("short")}).size(), 5U);  // By name.
  std::ostringstream text;
  compare_command({.a = dir_.file("six") + ":exact", .b = dir_.file("short") + ":half"}, text);
  EXPECT_THAT(text.str(), HasSubstr("not equal work: 40 and 20 steps"));
  EXPECT_THAT(text.str(), HasSubstr("Within this run only"));
  EXPECT_THAT(text.str(), HasSubstr("left out: [5,6]"));
}

TEST_F(Compare, RefusesWhatItCannotCompare) {
  const auto error = [](const CompareOptions& options) {
    std::ostringstream out;
    try {
      compare_command(options, out);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(error({.a = dir_.file("nowhere")}), HasSubstr("summary.json"));
  run("one", {"seeds=1", "steps=2"});
  EXPECT_THAT(error({.a = dir_.file("one") + ":exat", .b = dir_.file("one")}),
              HasSubstr("exact, aa, stage3, bits2, half"));
  EXPECT_THAT(error({.a = dir_.file("one"), .margin = -1}), HasSubstr("--margin"));
  EXPECT_THAT(error({.a = dir_.file("one"), .alpha = 0.7}), HasSubstr("--alpha"));
  dir_.write("one/summary.json", "{\"schema\": 9}");
  EXPECT_THAT(error({.a = dir_.file("one")}), HasSubstr("schema 1"));
}

}  // namespace
}  // namespace zeropp::experiments
