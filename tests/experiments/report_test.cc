// Small things that a reader of results relies on: cells of tables, fallbacks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "experiments/job_result.h"
#include "experiments/text_table.h"

namespace zeropp::experiments {
namespace {

using testing::HasSubstr;

TEST(TextTable, MarkdownKeepsADecoratedCodecInItsCell) {
  const TextTable table{
      .header = {"codecs", "loss"}, .rows = {{"w delta|int4:block=2048", "2.3"}}, .left = 1};
  EXPECT_THAT(table.markdown(), HasSubstr("| w delta\\|int4:block=2048 | 2.3 |"));
  EXPECT_THAT(table.text(), HasSubstr("w delta|int4:block=2048"));
}

TEST(Fallbacks, SayWhereAReferenceWasMissing) {
  zero::Dataset text;
  for (int i = 0; i < 3000; ++i) text.bytes.push_back(static_cast<std::uint8_t>('a' + i % 7));
  text.train_bytes = 2500;
  const RunConfig run = parse_run_config(
      R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
          "zeropp": {"cluster": {"nodes": 2, "ranks_per_node": 2}, "secondary": "node",
                     "model": {"layers": 1, "width": 8, "heads": 1, "context": 8}, "steps": 2,
                     "codecs": {"weights": "delta|int4"}, "eval": {"windows": 2}}})",
      "test.json", {});
  const std::atomic<int> stop{0};
  JobOutcome outcome = run_job(run, run.variants[0], 5, text, stop, [](const StepRecord&) {});
  const auto fallbacks = [&] {
    return job_result(run, run.variants[0], 5, text, outcome)["fallbacks"].dump();
  };
  EXPECT_EQ(fallbacks(), "[]");
  outcome.unreferenced_gathers = 6;
  EXPECT_THAT(fallbacks(), HasSubstr("codecs.weights: 6 gathers of a tensor were exact"));
}

}  // namespace
}  // namespace zeropp::experiments
