// The program as a process: exit codes, one line on stderr, nothing half-written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "experiments/json_io.h"
#include "tests/experiments/cli_support.h"

namespace zeropp::experiments {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kConfig = R"({
  "train_micro_batch_size_per_gpu": 1,
  "zeropp": {"cluster": {"nodes": 1, "ranks_per_node": 2},
             "model": {"layers": 1, "width": 8, "heads": 1, "context": 8},
             "steps": 2, "eval": {"windows": 2}}})";

TEST_F(Cli, HelpTeachesAndSucceeds) {
  for (const char* args :
       {"--help", "run --help", "verify --help", "plan --help", "codecs --help"}) {
    EXPECT_EQ(run(args), 0) << args;
    EXPECT_THAT(out_, HasSubstr("zeropp ")) << args;
    EXPECT_EQ(err_, "");
  }
  EXPECT_EQ(run("--version"), 0);
}

TEST_F(Cli, CommandLineMistakes) {
  EXPECT_EQ(run(""), 2);
  expect_one_line("subcommand");
  EXPECT_EQ(run("frobnicate"), 2);
  expect_one_line("'frobnicate'");
  EXPECT_EQ(run("run"), 2);
  expect_one_line("CONFIG");
  EXPECT_EQ(run("run missing.json --out out"), 2);
  expect_one_line("missing.json");
  EXPECT_EQ(run("plan --params many --ranks 8"), 2);
  expect_one_line("many");
  EXPECT_FALSE(written());
}

TEST_F(Cli, ConfigMistakes) {
  dir_.write("toy.json", kConfig);
  dir_.corpus();
  const std::pair<const char*, const char*> cases[] = {
      {"zeropp.stepps=3", "did you mean zeropp.steps?"},
      {"steps=many", "zeropp.steps to be an integer"},
      {"train_batch_size=3", "train_batch_size = train_micro_batch_size_per_gpu"},
      {"zero_optimization.stage=3 zero_hpz_partition_size=3",
       "zero_optimization.zero_hpz_partition_size to divide the 2 ranks"},
      {"data=nowhere.txt", "nowhere.txt"},
      {"eval.windows=1000000", "zeropp.eval.windows"},
      {"--bogus 1", "'bogus'"},
      {"--steps many", "zeropp.steps to be an integer"},
      {"--bogus=1", "'bogus'"},
  };
  for (const auto& [args, words] : cases) {
    const std::string data = std::string(args).starts_with("data=") ? "" : " data=corpus.txt";
    EXPECT_EQ(run(std::string("run toy.json --out out ") + args + data), 2) << args;
    expect_one_line(words);
    EXPECT_FALSE(written()) << args;
  }
}

TEST_F(Cli, UnwritableOutput) {
  dir_.write("toy.json", kConfig);
  dir_.corpus();
  EXPECT_EQ(run("run toy.json data=corpus.txt --out corpus.txt/out"), 2);
  expect_one_line("corpus.txt/out");
}

TEST_F(Cli, JsonOnStdoutTableElse) {
  dir_.write("toy.json", kConfig);
  dir_.corpus();
  EXPECT_EQ(run("run toy.json --data=corpus.txt --json --out out"), 0) << err_;
  EXPECT_EQ(parse_json(out_, "stdout")["schema"], 1);
  EXPECT_EQ(run("run toy.json --data=corpus.txt"), 0) << err_;  // The default folder.
  EXPECT_THAT(out_, HasSubstr("results/runs/toy-"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.path() / "results" / "runs"), {}), 1);
}

TEST_F(Cli, FailedJobExitsWithOne) {
  dir_.write("toy.json", kConfig);
  dir_.corpus();
  EXPECT_EQ(run("run toy.json data=corpus.txt steps=5 optimizer.params.lr=1e30 --out out"), 1);
  EXPECT_THAT(err_, HasSubstr("expected a finite loss"));
  EXPECT_EQ(read_json(dir_.path() / "out" / "summary.json")["variants"][0]["status"], "error");
}

TEST_F(Cli, FullDiskFailsTheJobThatMeetsIt) {
  dir_.write("toy.json", kConfig);
  dir_.corpus();
  const std::string variants =
      R"('variants=[{"name":"short","baseline":true},{"name":"long","zeropp":{"steps":900}}]')";
  // A limit on the size of files stands for the disk: no file of the short job meets it.
  EXPECT_EQ(shell("trap '' XFSZ; ulimit -f 128; '" + std::string(ZEROPP_PROGRAM) +
                  "' run toy.json data=corpus.txt --out out " + variants),
            1);
  EXPECT_THAT(err_, HasSubstr("zeropp: long seed 1: [output] expected a file that can be "
                              "written, found out/long/seed-1/metrics.jsonl: File too large"));
  const fs::path job = dir_.path() / "out" / "long" / "seed-1";
  EXPECT_EQ(read_json(job / "status.json")["status"], "error");
  EXPECT_FALSE(fs::exists(job / "metrics.jsonl"));
  EXPECT_FALSE(fs::exists(job / "metrics.jsonl.part"));
  const Json summary = read_json(dir_.path() / "out" / "summary.json");
  EXPECT_EQ(summary["variants"][0]["status"], "ok");
  EXPECT_EQ(summary["variants"][1]["status"], "error");
}

TEST_F(Cli, OutputThatDoesNotArriveIsAFailure) {
  dir_.write("toy.json", kConfig);
  dir_.corpus();
  for (const char* args : {"--help", "--version", "plan --params 7B --ranks 8",
                           "run toy.json data=corpus.txt --json --out out"}) {
    EXPECT_EQ(run(std::string(args) + " >/dev/full"), 1) << args;
    EXPECT_THAT(err_, testing::EndsWith("zeropp: [output] expected room for standard output, "
                                        "found an error\n"))
        << args;
    EXPECT_EQ(run(std::string(args) + " >/dev/null"), 0) << args << err_;
  }
}

TEST_F(Cli, SignalMarksTheJobKilledAndItResumes) {
  dir_.write("toy.json", kConfig);
  dir_.corpus();
  fs::create_directories(dir_.path() / "out");
  dir_.write("out/summary.json", "{}");  // Of an earlier run.
  dir_.write("out/summary.md", "");
  // Far too many steps; the signal comes as soon as the job says that it runs.
  const std::string status = "out/main/seed-1/status.json";
  EXPECT_EQ(shell("'" + std::string(ZEROPP_PROGRAM) +
                  "' run toy.json data=corpus.txt steps=100000000 --out out & p=$!; "
                  "until grep -qs running " +
                  status +
                  "; do sleep 0.05; done; "
                  "kill -TERM $p; wait $p"),
            128 + SIGTERM);
  const fs::path job = dir_.path() / "out" / "main" / "seed-1";
  EXPECT_EQ(read_json(job / "status.json")["status"], "killed");
  EXPECT_FALSE(fs::exists(job / "metrics.jsonl"));
  EXPECT_FALSE(fs::exists(job / "metrics.jsonl.part"));
  EXPECT_FALSE(fs::exists(dir_.path() / "out" / "summary.json"));
  EXPECT_FALSE(fs::exists(dir_.path() / "out" / "summary.md"));
  EXPECT_EQ(run("run toy.json data=corpus.txt --out out"), 0) << err_;
  EXPECT_EQ(read_json(job / "status.json")["status"], "ok");
}

}  // namespace
}  // namespace zeropp::experiments
