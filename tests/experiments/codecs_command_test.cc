// `zeropp codecs` and --plugin as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "experiments/json_io.h"
#include "quant/registry.h"
#include "tests/experiments/cli_support.h"

namespace zeropp::experiments {
namespace {

using testing::HasSubstr;

class CodecsCommand : public Cli {
 protected:
  Json json() const { return parse_json(out_, "stdout"); }
  static std::string plugin(const std::string& name) {
    return "--plugin '" + std::string(ZEROPP_PLUGINS) + "/" + name + ".so' ";
  }
};

TEST_F(CodecsCommand, ListsTheWholeRegistry) {
  ASSERT_EQ(run("codecs"), 0) << err_;
  const std::string text = out_;
  ASSERT_EQ(run("codecs --json"), 0) << err_;
  const Json list = json();
  const auto& entries = quant::codec_entries();
  ASSERT_EQ(list.size(), entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(list[i]["name"], entries[i].name);
    EXPECT_EQ(list[i]["help"], entries[i].help);
    ASSERT_EQ(list[i]["params"].size(), entries[i].params.size());
    EXPECT_THAT(text, HasSubstr("\n    ")) << "parameters";
    EXPECT_THAT(text, HasSubstr(entries[i].name));
    EXPECT_THAT(text, HasSubstr(entries[i].help));
    for (std::size_t p = 0; p < entries[i].params.size(); ++p) {
      EXPECT_EQ(list[i]["params"][p]["key"], entries[i].params[p].key);
      EXPECT_EQ(list[i]["params"][p]["default"], entries[i].params[p].fallback);
      EXPECT_THAT(text, HasSubstr(entries[i].params[p].help));
    }
    ASSERT_EQ(list[i]["examples"].size(), entries[i].examples.size());
  }
  const Json& first = list[4]["examples"][0];
  for (const char* key : {"spec", "rate", "unbiased", "deterministic", "stateful", "block",
                          "nan", "bits_per_element"}) {
    EXPECT_TRUE(first.contains(key)) << key;
  }
}

TEST_F(CodecsCommand, MeasuresWhatItIsAskedFor) {
  ASSERT_EQ(run("codecs --measure --codec int4:block=64 --codec bf16 --n 3000 --dtype fp32 "
                "--dtype bf16 --data normal --data outlier --repetitions 1 --json"),
            0)
      << err_;
  const Json list = json();
  ASSERT_EQ(list.size(), 8U);
  for (const Json& row : list) {
    for (const char* key : {"spec", "dtype", "n", "data", "bits_per_element", "nmse", "bias",
                            "encode_gbs", "decode_gbs", "reduce_encode_gbs", "memcpy_gbs"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    EXPECT_EQ(row["n"], 3000);
    EXPECT_GT(row["encode_gbs"], 0);
  }
  EXPECT_EQ(list[0]["spec"], "int4:block=64");
  EXPECT_EQ(list[0]["bits_per_element"], 8.0 * (47 * 4 + 1500) / 3000);
  EXPECT_EQ(list[7]["dtype"], "bf16");
  EXPECT_EQ(list[7]["data"], "outlier");
  EXPECT_EQ(list[7]["nmse"], 0.0);
}

TEST_F(CodecsCommand, WritesTableAndCsv) {
  ASSERT_EQ(run("codecs --measure --codec int4:block=64,scale=fp16 --n 1000 --repetitions 1 "
                "--data all --csv out.csv"),
            0)
      << err_;
  for (const char* word : {"NMSE", "SQNR", "bias", "2 hops", "ring", "memcpy", "denormal"}) {
    EXPECT_THAT(out_, HasSubstr(word));
  }
  const std::string csv = read_text(dir_.path() / "out.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
  EXPECT_THAT(csv, testing::StartsWith("spec,dtype,n,data,bits_per_element,nmse,"));
  EXPECT_THAT(csv, HasSubstr("\n\"int4:block=64,scale=fp16\",fp32,1000,heavy-tailed,"));
}

TEST_F(CodecsCommand, MeasuresTensorsOfAFile) {
  const std::string header =
      R"({"a.weight":{"dtype":"F32","shape":[2,50],"data_offsets":[0,400]},)"
      R"("b.weight":{"dtype":"BF16","shape":[8],"data_offsets":[400,416]},)"
      R"("ids.weight":{"dtype":"I64","shape":[1],"data_offsets":[416,424]},)"
      R"("bias":{"dtype":"F32","shape":[1],"data_offsets":[424,428]}})";
  const std::uint64_t size = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  bytes += header + std::string(428, '\x3c');
  dir_.write("m.safetensors", bytes);
  ASSERT_EQ(
      run("codecs --measure --codec int8 --safetensors m.safetensors --tensors '*.weight' "
          "--repetitions 1 --json"),
      0)
      << err_;
  EXPECT_THAT(err_, HasSubstr("left out 1"));
  const Json list = json();
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0]["data"], "a.weight");
  EXPECT_EQ(list[0]["n"], 100);
  EXPECT_EQ(list[0]["dtype"], "fp32");
  EXPECT_EQ(list[1]["dtype"], "bf16");
  EXPECT_EQ(list[1]["file"], "m.safetensors");
  EXPECT_EQ(run("codecs --measure --safetensors m.safetensors --tensors 'c*'"), 2);
  expect_one_line("fits 'c*'");
  dir_.write("m.safetensors", bytes.substr(0, 100));
  EXPECT_EQ(run("codecs --measure --safetensors m.safetensors"), 2);
  expect_one_line("m.safetensors");
}

/// A tensor's name comes with the file and may hold what a terminal obeys.
TEST_F(CodecsCommand, NamesOfTensorsDoNotSteerTheTerminal) {
  const std::string header =
      R"({"a\u001b[31m\n\u009bx":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::uint64_t size = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  dir_.write("m.safetensors", bytes + header + std::string(8, '\x3c'));
  const std::string command =
      "codecs --measure --codec int8 --safetensors m.safetensors --repetitions 1";
  ASSERT_EQ(run(command), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("a?[31m???x"));
  EXPECT_EQ(out_.find('\x1b'), std::string::npos);
  EXPECT_EQ(out_.find("\xc2\x9b"), std::string::npos);
  ASSERT_EQ(run(command + " --json"), 0) << err_;
  EXPECT_EQ(json()[0]["data"], "a\x1b[31m\n\xc2\x9bx") << "JSON keeps the name";
  dir_.write("m.safetensors", bytes + header);
  EXPECT_EQ(run(command), 2);
  EXPECT_EQ(err_.find('\x1b'), std::string::npos) << err_;
}

TEST_F(CodecsCommand, DrawsAPicture) {
  if (shell("python3 -c 'import matplotlib'") != 0) {
    EXPECT_EQ(run("codecs --measure --codec int4 --n 100 --repetitions 1 --picture p.svg"), 2);
    EXPECT_THAT(err_, HasSubstr("matplotlib"));
    return;
  }
  ASSERT_EQ(run("codecs --measure --codec int4 --codec int8 --n 100 --repetitions 1 "
                "--picture p.svg"),
            0)
      << err_;
  EXPECT_THAT(read_text(dir_.path() / "p.svg"), HasSubstr("</svg>"));
  // A link to a device stays one, a link to a file leads to the picture, a folder is refused.
  const std::string command =
      "codecs --measure --codec int4 --n 100 --repetitions 1 --picture ";
  std::filesystem::create_symlink("/dev/null", dir_.path() / "null.svg");
  ASSERT_EQ(run(command + "null.svg"), 0) << err_;
  EXPECT_TRUE(std::filesystem::is_symlink(dir_.path() / "null.svg"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  std::filesystem::create_symlink("p.svg", dir_.path() / "link.svg");
  dir_.write("p.svg", "old");
  ASSERT_EQ(run(command + "link.svg"), 0) << err_;
  EXPECT_TRUE(std::filesystem::is_symlink(dir_.path() / "link.svg"));
  EXPECT_THAT(read_text(dir_.path() / "p.svg"), HasSubstr("</svg>"));
  std::filesystem::create_directory(dir_.path() / "folder.svg");
  EXPECT_EQ(run(command + "folder.svg"), 2);
  EXPECT_TRUE(std::filesystem::is_directory(dir_.path() / "folder.svg"));
}

TEST_F(CodecsCommand, Mistakes) {
  const std::pair<const char*, const char*> cases[] = {
      {"codecs --measure --codec int9", "'int9'"},
      {"codecs --measure --codec int4:blok=3", "'blok'"},
      {"codecs --measure --codec nothing|int4", "nothing"},
      {"codecs --measure --n 0", "--n"},
      {"codecs --measure --n -3", "--n"},
      {"codecs --measure --n 1e15", "2^32"},
      {"codecs --measure --dtype fp8", "fp8"},
      {"codecs --measure --data banana", "heavy-tailed"},
      {"codecs --measure --safetensors absent.safetensors", "absent.safetensors"},
      {"codecs --measure --tensors x", "--safetensors"},
      {"codecs --measure --safetensors a --data normal", "both"},
      {"codecs --measure --ranks 8 --ranks-per-node 3", "divisor"},
      {"codecs --measure --ranks 0", "--ranks"},
      {"codecs --measure --picture x.jpg", ".svg or .png"},
      {"codecs --measure --check", "--measure"},
      {"codecs --n 5", "--n"},
      {"codecs --check --csv x.csv", "--csv"},
      {"codecs --codec int4", "--measure or --check"},
      {"codecs --measure --codec int4 --n 10 --repetitions 1 --csv no/such/x.csv", "x.csv"},
  };
  for (const auto& [args, words] : cases) {
    std::string quoted = args;
    if (const auto bar = quoted.find("nothing|int4"); bar != std::string::npos) {
      quoted.replace(bar, 12, "'nothing|int4'");
    }
    EXPECT_EQ(run(quoted), 2) << args;
    EXPECT_THAT(err_, HasSubstr(words)) << args;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  }
}

TEST_F(CodecsCommand, CheckFindsTheFaultsOfAPlugin) {
  EXPECT_EQ(run("codecs --check --codec mxfp4"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("mxfp4: ok"));
  EXPECT_EQ(run("codecs --check --json " + plugin("faulty_codec")), 1) << err_;
  const Json list = json();
  ASSERT_EQ(list.size(), 1U);  // The plug-in's codec alone.
  EXPECT_EQ(list[0]["spec"], "faulty");
  EXPECT_EQ(list[0]["ok"], false);
  std::vector<std::string> checks;
  for (const Json& failure : list[0]["failures"]) checks.push_back(failure["check"]);
  EXPECT_THAT(checks, testing::IsSupersetOf({"writes_what_it_reports", "error_within_promise",
                                             "short_wires_are_refused"}));
  EXPECT_EQ(run("codecs --check " + plugin("faulty_codec")), 1);
  EXPECT_THAT(out_, HasSubstr("faulty: writes_what_it_reports: fp32, n = "));
}

TEST_F(CodecsCommand, PluginsThatCannotBeLoaded) {
  dir_.write("text.so", "no library");
  const std::pair<std::string, const char*> cases[] = {
      {"--plugin absent.so", "absent.so"},
      {"--plugin .", "folder"},
      {"--plugin text.so", "shared library"},
      {"--plugin libm.so.6", "libm.so.6"},  // Not looked for in the system's folders.
      {plugin("faulty_abi"), "plug-in ABI"},
      {plugin("faulty_taken"), "'int8'"},
      {plugin("faulty_none"), "at least one codec"},
      {plugin("faulty_symbol"), "zeropp_no_such_function"},
      {plugin("faulty_codec") + plugin("faulty_codec"), "'faulty'"}};
  for (const auto& [args, words] : cases) {
    for (const char* command :
         {"codecs ", "verify --list ", "plan --params 7B --ranks 8 ", "run absent.json "}) {
      EXPECT_EQ(run(command + args), 2) << command << args;
      expect_one_line(words);
    }
  }
}

TEST_F(CodecsCommand, PluginsTakePartInRunsAndVerify) {
  dir_.write("toy.json", R"({
    "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
    "zeropp": {"cluster": {"nodes": 1, "ranks_per_node": 2}, "algorithm": "hierarchical",
               "model": {"layers": 1, "width": 8, "heads": 1, "context": 8},
               "steps": 2, "eval": {"windows": 2}, "codecs": {"gradients": "faulty"}}})");
  dir_.corpus();
  EXPECT_EQ(run("run toy.json data=corpus.txt --out out"), 2);
  EXPECT_THAT(err_, HasSubstr("'faulty'"));
  ASSERT_EQ(run("run toy.json data=corpus.txt --out out --json " + plugin("faulty_codec")), 0)
      << err_;
  const Json summary = json();
  EXPECT_EQ(summary["program"]["plugins"][0]["codecs"][0], "faulty");
  EXPECT_EQ(summary["program"]["plugins"][0]["sha256"].get<std::string>().size(), 64U);
  EXPECT_EQ(run("verify --list " + plugin("faulty_codec")), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("plug-in faulty: stage 3"));
}

}  // namespace
}  // namespace zeropp::experiments
