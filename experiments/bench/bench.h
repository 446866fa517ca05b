#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "hierarchy/ledger.h"
#include "hierarchy/topology.h"
#include "quant/codec.h"

namespace zeropp::experiments {

/// `zeropp bench`: collectives as nccl-tests measures them.
struct BenchOptions {
  std::vector<std::string> collectives, algorithms, codecs;  ///< Empty: all; all; "exact".
  std::string dtype = "fp32";
  int ranks = 8, ranks_per_node = 4;
  std::string transport = "virtual";
  int workers = 0;
  std::string min_bytes = "64K", max_bytes = "16M";
  double step_factor = 4;
  std::string step_bytes;  ///< Instead of the factor.
  int iterations = 20, warmup = 2;
  bool check = true;
  bool json = false;
  std::string json_file;  ///< -J: nccl-tests' own format.
  bool terminal = false;
};
/// Prints a table, or with `json` the rows. Returns the exit code: 1 where results are wrong.
int bench_command(const BenchOptions& options, std::ostream& out, std::ostream& err);

enum class BenchOp : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kBarrier,
  kMpiAllReduce,  ///< The MPI library's own.
  kMpiAllGather,
};

/// One line of the table: what to run on how much.
struct BenchCase {
  BenchOp op = BenchOp::kAllReduce;
  hierarchy::Algorithm algorithm = hierarchy::Algorithm::kRing;
  std::string codec;  ///< "exact" or a spec.
  quant::Dtype dtype = quant::Dtype::kF32;
  std::uint64_t bytes = 0;  ///< nccl-tests' size: all-gather's output, reduce-scatter's input.
  std::uint64_t count = 0;  ///< Elements of it.
};

std::string op_name(BenchOp op);                 ///< "all_reduce", ..., "MPI_Allreduce".
std::string algorithm_name(const BenchCase& c);  ///< "-" where there is none to choose.
/// All cases of the options, sizes innermost. Sizes are cut to whole elements a rank, as
/// nccl-tests does. UsageError.
std::vector<BenchCase> bench_cases(const BenchOptions& options);
hierarchy::Topology bench_topology(const BenchOptions& options);
/// "64K", "16M", "1G" (powers of 1024, as nccl-tests), "1000".
std::uint64_t parse_nccl_size(const std::string& text, const std::string& area);

/// algbw = bytes / time; busbw = algbw times this: all-reduce 2 (n-1)/n, reduce-scatter,
/// all-gather and all-to-all (n-1)/n, others 1 (nccl-tests, doc/PERFORMANCE.md).
double bus_factor(BenchOp op, int ranks);

struct BenchTime {
  double us = 0;      ///< Of one call: median of groups of calls between two barriers.
  double spread = 0;  ///< Half the distance of the quartiles of the groups.
};

struct BenchRow {
  BenchCase what;
  BenchTime out_of_place;
  std::optional<BenchTime> in_place;           ///< Where the collective can.
  std::optional<std::uint64_t> wrong;          ///< Elements; absent for lossy codecs.
  std::uint64_t wire_bytes = 0;                ///< Of one call, sent by all ranks.
  std::uint64_t xnode_bytes = 0;               ///< Of one call, out of the busiest node.
  std::optional<double> encode_us, decode_us;  ///< Of the rank's view, alone.
  double codec_us = 0;                         ///< Inside one call, the busiest rank's.
  std::optional<double> nmse;
  int iterations = 0;

  double alg_gbs(const BenchTime& t) const;  ///< 0 where no time passed.
  double bus_gbs(const BenchTime& t, int ranks) const;
};

/// The rows of all cases, on rank 0; `on_row` is called there after each. All processes of an
/// MPI run call it.
std::vector<BenchRow> run_bench(const BenchOptions& options,
                                const std::vector<BenchCase>& cases,
                                const std::function<void(const BenchRow&)>& on_row);

/// What nccl-tests sums up: wrong elements, and the mean bus bandwidth of all times that are of
/// data, in place or not.
struct BenchTotals {
  std::uint64_t wrong = 0;
  double bus_gbs = 0;
};
BenchTotals bench_totals(const std::vector<BenchRow>& rows, int ranks);

/// The table's text, line by line.
std::string bench_header(const BenchOptions& options);
std::string bench_title(const BenchCase& c);
std::string bench_line(const BenchRow& row, int ranks);
/// Under which bandwidth of a node's link each codec beats its exact rows, out-of-bounds count,
/// mean bus bandwidth.
std::string bench_footer(const std::vector<BenchRow>& rows, int ranks);

std::string bench_rows_json(const std::vector<BenchRow>& rows, const BenchOptions& options);
/// nccl-tests' -J, schema version 3.
std::string nccl_tests_json(const std::vector<BenchRow>& rows, const BenchOptions& options,
                            const std::string& started);

}  // namespace zeropp::experiments
