// Rows for scripts: our own keys, and nccl-tests' -J file.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "experiments/bench/bench.h"
#include "experiments/json_io.h"
#include "experiments/program_info.h"

namespace zeropp::experiments {
namespace {

template <class T>
Json or_null(const std::optional<T>& x) {
  return x ? Json(*x) : Json(nullptr);
}

Json time_json(const BenchRow& row, const BenchTime& t, int ranks) {
  return {{"time", t.us},
          {"alg_bw", row.alg_gbs(t)},
          {"bus_bw", row.bus_gbs(t, ranks)},
          {"nwrong", row.wrong ? Json(std::to_string(*row.wrong)) : Json("N/A")}};
}

const char* truth(bool x) { return x ? "true" : "false"; }

}  // namespace

std::string bench_rows_json(const std::vector<BenchRow>& rows, const BenchOptions& o) {
  Json list = Json::array();
  for (const BenchRow& row : rows) {
    const BenchCase& c = row.what;
    Json j = {{"collective", op_name(c.op)},
              {"algorithm", algorithm_name(c)},
              {"codec", c.codec},
              {"transport", o.transport},
              {"dtype", quant::name(c.dtype)},
              {"ranks", o.ranks},
              {"ranks_per_node", o.ranks_per_node},
              {"bytes", c.bytes},
              {"count", c.count},
              {"time_us", row.out_of_place.us},
              {"time_spread_us", row.out_of_place.spread},
              {"in_place_time_us", row.in_place ? Json(row.in_place->us) : Json(nullptr)},
              {"algbw_gbs", row.alg_gbs(row.out_of_place)},
              {"busbw_gbs", row.bus_gbs(row.out_of_place, o.ranks)},
              {"wrong", or_null(row.wrong)},
              {"wire_bytes", row.wire_bytes},
              {"xnode_bytes", row.xnode_bytes},
              {"encode_us", or_null(row.encode_us)},
              {"decode_us", or_null(row.decode_us)},
              {"codec_us", row.codec_us},
              {"nmse", or_null(row.nmse)}};
    list.push_back(std::move(j));
  }
  return to_text(list) + "\n";
}

std::string nccl_tests_json(const std::vector<BenchRow>& rows, const BenchOptions& o,
                            const std::string& started) {
  const auto [wrong, bus] = bench_totals(rows, o.ranks);
  Json results = Json::array();
  for (const BenchRow& row : rows) {
    const BenchCase& c = row.what;
    const bool reduces = c.op == BenchOp::kAllReduce || c.op == BenchOp::kReduceScatter;
    Json j = {{"size", c.bytes},
              {"count", c.count},
              {"type", quant::name(c.dtype)},
              {"redop", reduces ? "avg" : "none"},
              {"root", c.op == BenchOp::kBroadcast ? "0" : "-1"},
              {"out_of_place", time_json(row, row.out_of_place, o.ranks)},
              {"actual_iterations", row.iterations},
              {"experiment_name",
               fmt::format("{}/{}/{}", op_name(c.op), algorithm_name(c), c.codec)}};
    if (row.in_place) j["in_place"] = time_json(row, *row.in_place, o.ranks);
    results.push_back(std::move(j));
  }
  const Json all = {{"version", 3},
                    {"start_time", started},
                    {"args", "zeropp bench"},
                    {"nccl_version", "zeropp " + program_version()},
                    {"config",
                     {{"nthreads", 1},
                      {"ngpus", o.ranks},
                      {"minimum_bytes", parse_nccl_size(o.min_bytes, "--minbytes")},
                      {"maximum_bytes", parse_nccl_size(o.max_bytes, "--maxbytes")},
                      {"step_factor", o.step_factor},
                      {"warmup_iters", o.warmup},
                      {"iterations", o.iterations},
                      {"aggregated_iterations", 1},
                      {"validation", truth(o.check)},
                      {"graph", 0},
                      {"blocking_collectives", truth(false)}}},
                    {"results", results},
                    {"out_of_bounds", {{"count", wrong}, {"okay", truth(wrong == 0)}}},
                    {"average_bus_bandwidth", {{"bandwidth", bus}, {"okay", truth(true)}}}};
  return to_text(all) + "\n";
}

}  // namespace zeropp::experiments
