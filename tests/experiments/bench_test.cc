// `zeropp bench`: cases, formulas, what it measures against known bytes and answers.
#include "experiments/bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/json_io.h"
#include "quant/error.h"
#include "tests/experiments/temp_dir.h"

namespace zeropp::experiments {
namespace {

using testing::HasSubstr;

BenchOptions quick() {
  BenchOptions o;
  o.min_bytes = "1000";
  o.max_bytes = "40000";
  o.step_factor = 7;
  o.iterations = 2;
  o.warmup = 0;
  o.codecs = {"exact", "int8:block=64"};
  return o;
}

TEST(Bench, BandwidthsAreThoseOfNcclTests) {
  // n, all-reduce, all-gather, broadcast.
  for (const auto& [n, reduce, gather] :
       {std::tuple{1, 0.0, 0.0}, {2, 1.0, 0.5}, {8, 1.75, 0.875}}) {
    EXPECT_EQ(bus_factor(BenchOp::kAllReduce, n), reduce);
    EXPECT_EQ(bus_factor(BenchOp::kMpiAllReduce, n), reduce);
    EXPECT_EQ(bus_factor(BenchOp::kAllGather, n), gather);
    EXPECT_EQ(bus_factor(BenchOp::kReduceScatter, n), gather);
    EXPECT_EQ(bus_factor(BenchOp::kAllToAll, n), gather);
    EXPECT_EQ(bus_factor(BenchOp::kBroadcast, n), 1.0);
  }
  BenchRow row{.what = {.op = BenchOp::kAllReduce, .bytes = 4'000'000}};
  EXPECT_EQ(row.alg_gbs({.us = 1000}), 4.0);
  EXPECT_EQ(row.bus_gbs({.us = 1000}, 2), 4.0);
  EXPECT_EQ(row.alg_gbs({}), 0.0);  // Not inf.
}

TEST(Bench, SizesAreCutToWholeElementsARank) {
  BenchOptions o = quick();
  o.ranks = 6;
  o.ranks_per_node = 3;
  o.collectives = {"all_reduce"};
  o.algorithms = {"ring"};
  o.codecs = {};
  std::vector<std::uint64_t> bytes;
  for (const BenchCase& c : bench_cases(o)) bytes.push_back(c.bytes);
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{984, 6984}));
  o.step_bytes = "16K";
  bytes.clear();
  for (const BenchCase& c : bench_cases(o)) bytes.push_back(c.bytes);
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{984, 17376, 33768}));
  EXPECT_EQ(parse_nccl_size("8M", ""), 8U << 20);
  EXPECT_EQ(parse_nccl_size("3g", ""), std::uint64_t{3} << 30);
}

TEST(Bench, EveryRowIsRightOnOddShapes) {
  for (const auto& [ranks, node] : {std::pair{1, 1}, {2, 1}, {6, 3}, {5, 5}, {8, 2}}) {
    for (const char* dtype : {"fp32", "bf16", "fp16"}) {
      BenchOptions o = quick();
      o.ranks = ranks;
      o.ranks_per_node = node;
      o.dtype = dtype;
      for (const BenchRow& row : run_bench(o, bench_cases(o), {})) {
        SCOPED_TRACE(bench_title(row.what) + std::to_string(ranks) + " " + dtype);
        if (row.what.op == BenchOp::kBarrier) continue;
        ASSERT_TRUE(row.nmse.has_value());
        if (row.what.codec == "exact") {
          EXPECT_EQ(row.wrong, 0U);
          EXPECT_EQ(*row.nmse, 0.0);
        } else {
          EXPECT_FALSE(row.wrong.has_value());
          EXPECT_LT(*row.nmse, 1e-3);
          // One rank alone reduces nothing, so nothing is coded.
          EXPECT_TRUE(*row.nmse > 0 || ranks == 1) << *row.nmse;
          EXPECT_TRUE(row.encode_us.has_value() && row.decode_us.has_value());
        }
      }
    }
  }
}

TEST(Bench, BytesAreCounted) {
  BenchOptions o = quick();
  o.min_bytes = o.max_bytes = "32K";
  o.collectives = {"all_gather", "reduce_scatter"};
  const auto rows = run_bench(o, bench_cases(o), {});
  const auto of = [&](BenchOp op, hierarchy::Algorithm algorithm, const std::string& codec) {
    for (const BenchRow& row : rows) {
      if (row.what.op == op && row.what.algorithm == algorithm && row.what.codec == codec) {
        return row;
      }
    }
    ADD_FAILURE() << "no such row";
    return BenchRow{};
  };
  const std::uint64_t p = 32768;
  using hierarchy::Algorithm;
  const BenchRow ring = of(BenchOp::kAllGather, Algorithm::kRing, "exact");
  EXPECT_EQ(ring.wire_bytes, 7 * p);       // Each rank sends 7 of 8 chunks.
  EXPECT_EQ(ring.xnode_bytes, 7 * p / 8);  // One rank of a node sends them out.
  const BenchRow direct = of(BenchOp::kReduceScatter, Algorithm::kAllToAll, "exact");
  EXPECT_EQ(direct.xnode_bytes, 4 * 4 * p / 8);
  const BenchRow levels = of(BenchOp::kReduceScatter, Algorithm::kHierarchical, "exact");
  EXPECT_EQ(levels.xnode_bytes, p / 2);
  const BenchRow coded = of(BenchOp::kReduceScatter, Algorithm::kHierarchical, "int8:block=64");
  EXPECT_EQ(coded.xnode_bytes, p / 2 / 4 * (64 + 4) / 64);
}

TEST(Bench, PrintsTheTableAndBothJsons) {
  const TempDir dir;
  BenchOptions o = quick();
  o.json_file = dir.file("nccl.json");
  std::ostringstream out, err;
  EXPECT_EQ(bench_command(o, out, err), 0);
  EXPECT_THAT(out.str(), HasSubstr("out-of-place"));
  EXPECT_THAT(out.str(), HasSubstr("# all_reduce, hierarchical, int8:block=64\n"));
  EXPECT_THAT(out.str(), HasSubstr("# Out of bounds values : 0 OK\n"));
  EXPECT_THAT(out.str(), HasSubstr("# break-even: reduce_scatter hierarchical"));
  // nccl-tests' columns: size count type redop root, then two halves.
  std::istringstream lines(out.str());
  std::string line;
  while (line.find("# all_reduce, ring") == std::string::npos) std::getline(lines, line);
  std::uint64_t size = 0, count = 0;
  std::string type, redop;
  int root = 0;
  lines >> size >> count >> type >> redop >> root;
  EXPECT_EQ(size, 992U);
  EXPECT_EQ(count, 248U);
  EXPECT_EQ(type + redop, "floatavg");
  EXPECT_EQ(root, -1);
  const Json nccl = read_json(dir.file("nccl.json"));
  EXPECT_EQ(nccl.at("version"), 3);
  EXPECT_EQ(nccl.at("out_of_bounds").at("okay"), "true");
  EXPECT_EQ(nccl.at("results").at(0).at("in_place").at("nwrong"), "0");
  o.json = true;
  out.str("");
  EXPECT_EQ(bench_command(o, out, err), 0);
  const Json rows = parse_json(out.str(), "bench");
  EXPECT_GT(rows.size(), 20U);
  for (const Json& row : rows) {
    for (const char* key :
         {"collective", "algorithm", "codec", "ranks", "ranks_per_node", "bytes", "time_us",
          "algbw_gbs", "busbw_gbs", "wrong", "wire_bytes", "xnode_bytes", "nmse"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
  }
}

TEST(Bench, RefusesWhatItCannotDo) {
  const auto error = [](const std::function<void(BenchOptions&)>& change) {
    BenchOptions o = quick();
    change(o);
    std::ostringstream out, err;
    try {
      bench_command(o, out, err);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(error([](auto& o) { o.collectives = {"reduce"}; }), HasSubstr("--collective"));
  EXPECT_THAT(error([](auto& o) { o.algorithms = {"native"}; }), HasSubstr("--algorithm"));
  EXPECT_THAT(error([](auto& o) { o.codecs = {"ef|int8"}; }), HasSubstr("--codec"));
  EXPECT_THAT(error([](auto& o) { o.min_bytes = "12X"; }), HasSubstr("'12X'"));
  EXPECT_THAT(error([](auto& o) { o.min_bytes = "2M"; }), HasSubstr("--minbytes"));
  EXPECT_THAT(error([](auto& o) { o.step_factor = 1; }), HasSubstr("--stepfactor"));
  EXPECT_THAT(error([](auto& o) { o.iterations = 0; }), HasSubstr("--iters"));
  EXPECT_THAT(error([](auto& o) { o.ranks = 7; }), HasSubstr("--ranks-per-node"));
  EXPECT_THAT(error([](auto& o) { o.ranks = 0; }), HasSubstr("--ranks]"));
  EXPECT_THAT(error([](auto& o) { o.transport = "tcp"; }), HasSubstr("--transport"));
  EXPECT_THAT(error([](auto& o) {
                o.collectives = {"all_reduce"};
                o.algorithms = {"ring"};
                o.codecs = {"int8"};
              }),
              HasSubstr("ring does not reduce through codecs"));
}

}  // namespace
}  // namespace zeropp::experiments
