#include "experiments/sweep/sweep.h"

#include <nlohmann/json.hpp>

#include "experiments/sweep/report.h"
#include "tests/experiments/config_support.h"

namespace zeropp::experiments {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names(const RunConfig& run) {
  std::vector<std::string> out;
  for (const VariantConfig& v : run.variants) out.push_back(v.name);
  return out;
}

std::vector<std::string> texts(const std::string& list) {
  std::vector<std::string> out;
  for (const Json& value : sweep_values(list)) out.push_back(to_text(value, -1));
  return out;
}

TEST(SweepValues, ListsRangesAndSpecs) {
  EXPECT_THAT(texts("1,2.5,x"), ElementsAre("1", "2.5", "\"x\""));
  EXPECT_THAT(texts("choice(a, b)"), ElementsAre("\"a\"", "\"b\""));
  EXPECT_THAT(texts("range(3)"), ElementsAre("0", "1", "2"));
  EXPECT_THAT(texts("range(1,2,0.25)"), ElementsAre("1.0", "1.25", "1.5", "1.75"));
  EXPECT_THAT(texts("range(3,0,-1)"), ElementsAre("3", "2", "1"));
  // Commas of a codec's spec, of brackets and of quotes do not part.
  EXPECT_THAT(texts("int4:block=64,scale=fp16"), ElementsAre("\"int4:block=64,scale=fp16\""));
  EXPECT_THAT(texts("int4:block=64,scale=fp16,ef(beta=1,x=2)|int8"),
              ElementsAre("\"int4:block=64,scale=fp16\"", "\"ef(beta=1,x=2)|int8\""));
  EXPECT_THAT(texts("[1,2],[3]"), ElementsAre("[1, 2]", "[3]"));
  EXPECT_THAT(texts("'a,b',c"), ElementsAre("\"a,b\"", "\"c\""));
  EXPECT_THROW(sweep_values("range(1,1)"), UsageError);
  EXPECT_THROW(sweep_values("range(a,2)"), UsageError);
}

TEST(Sweep, CommandLineCrossesAndTheFirstIsTheBaseline) {
  const RunConfig run = parse(kSmall, {"steps=5,6", "--gradient_clipping=0.5,1", "seeds=3,4"});
  EXPECT_THAT(names(run),
              ElementsAre("steps=5,gradient_clipping=0.5", "steps=5,gradient_clipping=1",
                          "steps=6,gradient_clipping=0.5", "steps=6,gradient_clipping=1"));
  EXPECT_THAT(run.seeds, ElementsAre(3u, 4u));
  for (const VariantConfig& v : run.variants) {
    EXPECT_EQ(v.baseline, v.name == "steps=5,gradient_clipping=0.5");
    EXPECT_EQ(v.compared_with, "steps=5,gradient_clipping=0.5");
  }
  EXPECT_EQ(run.variants[3].steps, 6u);
  EXPECT_EQ(run.variants[3].engine.clip, 1.0);
}

TEST(Sweep, AJobIsItsOwnConfigWhateverSweepItIsIn) {
  const RunConfig small = parse(kSmall, {"steps=5,6"});
  const RunConfig large = parse(kSmall, {"steps=4,6,5"});
  EXPECT_EQ(small.variants[0].hash, large.variants[2].hash);
  EXPECT_EQ(small.variants[0].name, large.variants[2].name);
  EXPECT_EQ(small.variants[0].hash, parse_one(kSmall, {"steps=5"}).hash);
}

constexpr const char* kGrid = R"("zeropp": {
    "variants": [{"name": "exact", "baseline": true,
                  "zeropp": {"codecs": {"gradients": "none"}}},
                 {"name": "q"}],
    "sweep": {"grid": {"bits": [4, 8], "block": "64,128", "optimizer.params.lr": [0.1, 0.2]},
              "set": {"codecs.gradients": "int${bits}:block=${block}"},
              "exclude": [{"bits": 8, "block": [64]}]}})";

TEST(Sweep, BaselinesAreMatchedOnTheAxesTheyHave) {
  const RunConfig run = parse(with(kGrid));
  EXPECT_THAT(names(run),
              ElementsAre("exact,lr=0.1", "exact,lr=0.2", "q,bits=4,block=64,lr=0.1",
                          "q,bits=4,block=64,lr=0.2", "q,bits=4,block=128,lr=0.1",
                          "q,bits=4,block=128,lr=0.2", "q,bits=8,block=128,lr=0.1",
                          "q,bits=8,block=128,lr=0.2"));
  for (const VariantConfig& v : run.variants) {
    EXPECT_EQ(v.baseline, v.name.starts_with("exact"));
    EXPECT_EQ(v.compared_with, v.name.ends_with("0.1") ? "exact,lr=0.1" : "exact,lr=0.2");
  }
  EXPECT_THAT(run.variants[6].gradient_codecs[0], HasSubstr("int8:block=128"));
  EXPECT_EQ(run.variants[0].gradient_codecs[0], "exact");
  EXPECT_EQ(run.variants[7].engine.optimizer.lr, 0.2);
}

TEST(Sweep, ZipGoesSideBySide) {
  const RunConfig run = parse(with(
      R"("sweep": {"zip": {"steps": [5, 6], "gradient_clipping": [1, 2]},
                   "baseline": {"steps": 6}})"));
  EXPECT_THAT(names(run),
              ElementsAre("steps=5,gradient_clipping=1", "steps=6,gradient_clipping=2"));
  EXPECT_TRUE(run.variants[1].baseline);
}

TEST(Sweep, ErrorsNameTheAxis) {
  const auto swept = [](const char* text) { return error_of(with(text)); };
  EXPECT_THAT(swept(R"("sweep": {"grid": {"stpes": [1, 2]}})"), HasSubstr("'stpes'"));
  EXPECT_THAT(swept(R"("sweep": {"lr": [1, 2]})"), HasSubstr("found 'lr'"));
  EXPECT_THAT(swept(R"("sweep": {"grid": {"steps": [5, 5]}})"), HasSubstr("each value once"));
  EXPECT_THAT(swept(R"("sweep": {"grid": {"steps": []}})"), HasSubstr("'steps'"));
  EXPECT_THAT(swept(R"("sweep": {"zip": {"steps": [1, 2], "gradient_clipping": [1]}})"),
              HasSubstr("one length"));
  EXPECT_THAT(swept(R"("sweep": {"grid": {"model.width": [32, 64]}})"),
              HasSubstr("set once for all variants"));
  EXPECT_THAT(swept(R"("sweep": {"grid": {"steps": [1, 2]}, "exclude": [{"steps": 1}]})"),
              HasSubstr("baseline that is not excluded"));
  EXPECT_THAT(swept(R"("sweep": {"grid": {"steps": [1, 2]}, "set": {"algorithm": "${a}"}})"),
              HasSubstr("set.zeropp.algorithm"));
  EXPECT_THAT(error_of(kSmall, {"stpes=1,2"}), HasSubstr("'stpes'"));
}

TEST(Sweep, ListOfJobs) {
  const Json jobs = jobs_json(parse(with(kGrid), {"seeds=1,2,3"}));
  EXPECT_EQ(jobs["jobs"], 24);
  const Json& exact = jobs["variants"][0];
  const Json& coded = jobs["variants"][2];
  EXPECT_GT(exact["model_state_bytes_per_rank"], 0);
  EXPECT_LT(to_double(coded["predicted_bytes_per_step"]["net"]),
            to_double(exact["predicted_bytes_per_step"]["net"]));
  EXPECT_THAT(jobs_table(jobs), HasSubstr("24 jobs"));
}

TEST(Sweep, WhatCannotFitIsRefused) {
  const RunConfig run = parse(kSmall, {"steps=1,2"});
  EXPECT_NO_THROW(check_memory(run, std::uint64_t{1} << 40));
  EXPECT_NO_THROW(check_memory(run, 0));  // Unknown.
  EXPECT_THROW(check_memory(run, 1 << 10), UsageError);
}

}  // namespace
}  // namespace zeropp::experiments
