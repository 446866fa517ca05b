// Checkpoint files: what is read back, GPT-2 files of others, runs that begin from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/checkpoint/files.h"
#include "experiments/checkpoint/gpt2.h"
#include "experiments/json_io.h"
#include "experiments/runner.h"
#include "experiments/safetensors/reader.h"
#include "experiments/safetensors/writer.h"
#include "quant/error.h"
#include "tests/experiments/temp_dir.h"

namespace zeropp::experiments {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

zero::GptConfig small(bool tied = true) {
  return {.layers = 1, .width = 4, .heads = 2, .vocab = 256, .context = 3, .tied = tied};
}

/// Every element another number; moments too.
zero::Checkpoint numbered(const zero::GptConfig& config) {
  const auto model = zero::make_gpt(config);
  zero::Checkpoint c;
  float next = 0.5F;
  for (const zero::TensorSpec& spec : model->tensors()) {
    auto& x = c.state.emplace_back(3 * spec.numel);
    for (float& v : x) v = next += 0.25F;
  }
  c.step = 7;
  c.version = c.updates = 5;
  c.skipped = 2;
  c.samples = 123;
  c.ranks = 2;
  c.loss_scale = {.scale = 0.1, .iteration = 7, .last_overflow = 3, .hysteresis = 2};
  c.has_momentum = c.has_variance = true;
  c.layout = "a \"layout\"";
  c.weight_codec = "int8:block=64";
  c.applied = {1, 5, 0, 0, 0};
  c.copies.versions.assign(c.state.size(), 5);
  for (const auto& x : c.state) c.copies.tensors.emplace_back(x.begin(), x.begin() + 3);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const float value = 1.5F + static_cast<float>(rank);
    quant::ResidualPiece p{.key = {.role = quant::Role::kGradient,
                                   .tensor = 2,
                                   .part = rank,
                                   .level = 1,
                                   .second_hop = true,
                                   .decorator = "ef(beta=1)|int4"},
                           .n = 1,
                           .store = "fp32",
                           .bytes = std::vector<std::byte>(4)};
    std::memcpy(p.bytes.data(), &value, 4);
    quant::ResidualPiece coded = p;
    coded.key.receiver = true;
    coded.key.source = 3;
    coded.store = "int8:block=64";
    coded.bytes.resize(5);
    c.residuals.push_back({p, coded});
    zero::LowRankState& low = c.low_rank.emplace_back();
    low.error.resize(c.state.size());
    low.right.resize(c.state.size());
    low.error[0] = {value, 2, 3};
    low.right[0] = {4, 5};
  }
  return c;
}

TEST(CheckpointFiles, ReadBackAsTheyWere) {
  const TempDir dir;
  for (const bool tied : {true, false}) {
    const zero::GptConfig config = small(tied);
    const zero::Checkpoint c = numbered(config);
    const fs::path path = dir.file("checkpoint-7");
    write_checkpoint(path, config, c, {});
    write_checkpoint(path, config, c, {});  // Over an old one.
    const zero::Checkpoint read = read_checkpoint(path, config);
    EXPECT_EQ(read.state, c.state);
    EXPECT_EQ(read.step, c.step);
    EXPECT_EQ(read.updates, c.updates);
    EXPECT_EQ(read.skipped, c.skipped);
    EXPECT_EQ(read.samples, c.samples);
    EXPECT_EQ(read.loss_scale.scale, c.loss_scale.scale);
    EXPECT_EQ(read.loss_scale.last_overflow, c.loss_scale.last_overflow);
    EXPECT_EQ(read.layout, c.layout);
    EXPECT_EQ(read.applied, c.applied);
    EXPECT_EQ(read.copies.versions, c.copies.versions);
    EXPECT_EQ(read.copies.tensors, c.copies.tensors);
    ASSERT_EQ(read.residuals.size(), 2U);
    for (std::size_t r = 0; r < 2; ++r) {
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(read.residuals[r][i].key, c.residuals[r][i].key);
        EXPECT_EQ(read.residuals[r][i].bytes, c.residuals[r][i].bytes);
        EXPECT_EQ(read.residuals[r][i].store, c.residuals[r][i].store);
      }
      EXPECT_EQ(read.low_rank[r].error, c.low_rank[r].error);
      EXPECT_EQ(read.low_rank[r].right, c.low_rank[r].right);
    }
    std::size_t left = 0;
    for (const auto& entry : fs::directory_iterator(dir.path())) left += entry.exists();
    EXPECT_EQ(left, 1U);  // No temporary folder.
  }
}

TEST(CheckpointFiles, HaveTheLayoutOfTheReferenceWriter) {
  const TempDir dir;
  const float a[2] = {1, 2};
  write_safetensors(dir.file("a"),
                    {{.name = "a",
                      .dtype = "F32",
                      .shape = {2},
                      .data = std::as_bytes(std::span<const float>(a))}},
                    {{"format", "pt"}});
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string want = std::string("\x58\0\0\0\0\0\0\0", 8) + header + "   " +
                           std::string("\0\0\x80\x3f\0\0\0\x40", 8);
  EXPECT_EQ(read_text(dir.file("a")), want);
}

std::string error_of(const fs::path& path, const zero::GptConfig& config) {
  try {
    (void)read_gpt2(path, config);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

/// The tensors of a model under other names or shapes.
void write_as(const fs::path& path, const zero::GptConfig& config,
              const std::function<void(TensorToWrite&)>& change,
              std::vector<TensorToWrite> more = {}) {
  const auto model = zero::make_gpt(config);
  static const std::vector<float> numbers(4096, 0.5F);
  for (const zero::TensorSpec& spec : model->tensors()) {
    more.push_back({.name = spec.name,
                    .dtype = "F32",
                    .shape = {spec.shape.begin(), spec.shape.end()},
                    .data = std::as_bytes(std::span<const float>(numbers.data(), spec.numel))});
    change(more.back());
  }
  write_safetensors(path, more, {});
}

TEST(CheckpointFiles, WeightsOfOthersAreRead) {
  const TempDir dir;
  const std::vector<float> mask(9);
  const TensorToWrite masked{.name = "h.0.attn.bias",
                             .dtype = "F32",
                             .shape = {1, 1, 3, 3},
                             .data = std::as_bytes(std::span<const float>(mask))};
  write_as(dir.file("plain"), small(), [](TensorToWrite&) {}, {masked});
  EXPECT_EQ(read_gpt2(dir.file("plain"), small())[0][0], 0.5F);
  write_as(dir.file("turned"), small(), [](TensorToWrite& t) {
    if (t.name == "h.0.attn.c_attn.weight") t.shape = {12, 4};
  });
  EXPECT_THAT(error_of(dir.file("turned"), small()),
              AllOf(HasSubstr("c_attn.weight"), HasSubstr("[4, 12]"), HasSubstr("[12, 4]")));
  write_as(dir.file("renamed"), small(), [](TensorToWrite& t) {
    if (t.name == "ln_f.bias") t.name = "ln_g.bias";
  });
  EXPECT_THAT(error_of(dir.file("renamed"), small()), HasSubstr("'ln_g.bias'"));
  EXPECT_THAT(error_of(dir.file("plain"), small(false)), HasSubstr("lm_head.weight"));
  zero::GptConfig deeper = small();
  deeper.layers = 2;
  EXPECT_THAT(error_of(dir.file("plain"), deeper), HasSubstr("'h.1."));
}

TEST(CheckpointFiles, DamageIsNamed) {
  const TempDir dir;
  const fs::path path = dir.file("c");
  write_checkpoint(path, small(), numbered(small()), {});
  const auto error = [&] {
    try {
      (void)read_checkpoint(path, small());
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(error(), "none");
  for (const char* name : {"model.safetensors", "optimizer.safetensors",
                           "codec_state.safetensors", "zeropp_state.json"}) {
    const std::string whole = read_text(path / name);
    std::ofstream(path / name, std::ios::binary) << whole.substr(0, whole.size() - 9);
    EXPECT_THAT(error(), HasSubstr(name));
    fs::remove(path / name);
    EXPECT_THAT(error(), HasSubstr(name));
    std::ofstream(path / name, std::ios::binary) << whole;
  }
  EXPECT_EQ(error(), "none");
}

constexpr const char* kConfig = R"({
  "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "zero_optimization": {"stage": 3},
  "zeropp": {"cluster": {"nodes": 2, "ranks_per_node": 2},
             "model": {"layers": 1, "width": 8, "heads": 2, "context": 8},
             "steps": 4, "eval": {"windows": 2}, "algorithm": "hierarchical",
             "checkpoint": {"every": 2, "keep": 0},
             "variants": [{"name": "toy", "baseline": true}]}})";

class CheckpointRun : public testing::Test {
 protected:
  Json run(const std::string& out, const std::vector<std::string>& more, int code = 0) {
    RunOptions options{.config = dir_.write("toy.json", kConfig), .out = dir_.file(out)};
    options.overrides = {"data=" + dir_.corpus()};
    options.overrides.insert(options.overrides.end(), more.begin(), more.end());
    std::ostringstream printed;
    err_.str("");
    int ended = 2;
    try {
      ended = run_command(options, printed, err_);
    } catch (const UsageError& e) {
      err_ << e.what();
    }
    EXPECT_EQ(ended, code) << err_.str();
    return code == 0 ? read_json(fs::path(options.out) / "summary.json").at("variants").at(0)
                     : Json();
  }
  std::string saved(int step) const {
    return dir_.file("first") + "/toy/seed-1/checkpoint-" + std::to_string(step);
  }
  static std::string sha(const Json& variant) {
    return variant.at("seeds").at(0).at("state_sha256").get<std::string>();
  }
  TempDir dir_;
  std::ostringstream err_;
};

TEST_F(CheckpointRun, BeginsWhereAnotherEnded) {
  const Json first = run("first", {});
  ASSERT_TRUE(fs::exists(saved(2))) << "keep = 0 keeps all";
  const Json second = run("second", {"checkpoint.load=" + saved(2)});
  EXPECT_EQ(sha(second), sha(first));
  EXPECT_TRUE(second.at("fallbacks").empty());
  // Another stage of exact runs goes on to the same bits.
  const Json stage2 =
      run("stage2", {"checkpoint.load=" + saved(2), "zero_optimization.stage=2"});
  EXPECT_EQ(sha(stage2), sha(first));
  // Weights alone: step 0, new moments.
  const Json weights =
      run("weights", {"checkpoint.load=" + saved(2), "checkpoint.load_weights_only=true"});
  EXPECT_NE(sha(weights), sha(first));
  EXPECT_EQ(sha(weights),
            sha(run("file", {"checkpoint.load=" + saved(2) + "/model.safetensors"})));
}

TEST_F(CheckpointRun, SaysWhatItLeavesBehind) {
  run("first", {"codecs.gradients=ef|int4:block=32"});
  const Json plain = run("plain", {"checkpoint.load=" + saved(4), "steps=6"});
  EXPECT_THAT(plain.at("fallbacks").dump(), HasSubstr("residuals of other codecs are dropped"));
  const Json wider = run("wider", {"checkpoint.load=" + saved(4), "steps=6", "cluster.nodes=3",
                                   "codecs.gradients=ef|int4:block=32"});
  EXPECT_THAT(wider.at("fallbacks").dump(), HasSubstr("residuals of 4 ranks are their mean"));
}

TEST_F(CheckpointRun, RefusesWhatCannotBeLoaded) {
  run("first", {});
  run("none", {"checkpoint.load=" + dir_.file("nowhere")}, 2);
  EXPECT_THAT(err_.str(), HasSubstr("zeropp.checkpoint.load"));
  run("late", {"checkpoint.load=" + saved(4)}, 2);
  EXPECT_THAT(err_.str(), HasSubstr("zeropp.steps] expected more than the 4"));
  run("wide", {"checkpoint.load=" + saved(2), "model.width=16"}, 2);
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("[256, 16]"), HasSubstr("[256, 8]")));
  run("other", {"checkpoint.load=" + saved(2), "checkpoint.load_sha256=abc"}, 2);
  EXPECT_THAT(err_.str(), HasSubstr("load_sha256"));
}

}  // namespace
}  // namespace zeropp::experiments
