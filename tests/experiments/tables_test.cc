// The published tables: what each stage holds and sends (stages.json), and 3M -> 0.75M
// (volume.json). Exact, from counted bytes.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "experiments/json_io.h"
#include "experiments/runner.h"
#include "tests/experiments/temp_dir.h"

namespace zeropp::experiments {
namespace {

std::map<std::string, Json> run_config(const TempDir& dir, const std::string& name,
                                       const std::string& steps) {
  RunOptions options{.config = std::string(ZEROPP_CONFIGS) + "/" + name + ".json",
                     .overrides = {"steps=" + steps, "eval.windows=1"},
                     .out = dir.file("out")};
  std::ostringstream out, err;
  EXPECT_EQ(run_command(options, out, err), 0) << err.str();
  std::map<std::string, Json> variants;
  const Json summary = read_json(dir.path() / "out" / "summary.json");
  for (const Json& v : summary["variants"]) {
    for (const auto& [link, t] : v["traffic_per_step"].items()) {
      EXPECT_EQ(t["bytes_sum"], t["predicted_bytes_sum"]) << v["name"] << " " << link;
    }
    variants[v["name"]] = v;
  }
  return variants;
}

TEST(Tables, StagesHoldAndSendWhatTheyShould) {
  const TempDir dir;
  const auto variants = run_config(dir, "stages", "2");
  ASSERT_EQ(variants.size(), 6u);
  constexpr std::uint64_t n = 32, l = 8;
  std::set<std::string> losses;
  for (const auto& [name, v] : variants) {
    EXPECT_EQ(v["memory_per_rank"]["model_state_bytes"], v["memory_per_rank"]["formula_bytes"]);
    losses.insert(v["seeds"][0]["losses_sha256"].get<std::string>() +
                  v["seeds"][0]["state_sha256"].get<std::string>());
  }
  EXPECT_EQ(losses.size(), 1u);
  // Bytes of 2-byte elements a rank sends; a multiple of Psi/N each.
  const std::uint64_t chunk = 2 * 660'608 / n;
  const auto sent = [&](const char* name) {
    const Json& s = variants.at(name)["sent_per_rank"];
    return s["weights"].get<std::uint64_t>() + s["gradients"].get<std::uint64_t>();
  };
  EXPECT_EQ(sent("stage-0"), 2 * (n - 1) * chunk);
  EXPECT_EQ(sent("stage-1-2psi"), 2 * (n - 1) * chunk);
  EXPECT_EQ(sent("stage-1-3psi"), 3 * (n - 1) * chunk);
  EXPECT_EQ(sent("stage-2"), 2 * (n - 1) * chunk);
  // The tied weight is gathered for the embedding's and for the head's forward, so it too
  // twice.
  EXPECT_EQ(sent("stage-3"), 3 * (n - 1) * chunk);
  // hpZ gathers over the world once, then inside the node: Psi (L-1)/L.
  EXPECT_EQ(sent("stage-3-hpz"), 2 * (n - 1) * chunk + (l - 1) * (n / l) * chunk);
}

TEST(Tables, VolumeOfZeroPlusPlus) {
  const TempDir dir;
  const auto variants = run_config(dir, "volume", "2");
  const std::map<std::string, double> expected = {
      {"zero3", 3}, {"qwz", 2}, {"hpz", 2}, {"qgz-int4", 2.25}, {"zero++", 0.75}};
  ASSERT_EQ(variants.size(), expected.size());
  for (const auto& [name, units] : expected) {
    SCOPED_TRACE(name);
    const Json& volume = variants.at(name)["volume"];
    EXPECT_DOUBLE_EQ(to_double(volume["coded_over_own_share"]), units);
    EXPECT_NEAR(to_double(volume["total"]),
                to_double(volume["coded"]) + to_double(volume["exact_tensors"]) +
                    to_double(volume["scales"]) + to_double(volume["padding"]) +
                    to_double(volume["scalars"]),
                1e-12);
    const bool coded = units != 3 && name != "hpz";
    EXPECT_EQ(to_double(volume["scales"]) > 0, coded);
  }
}

}  // namespace
}  // namespace zeropp::experiments
