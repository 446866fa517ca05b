// The table of nccl-tests, with what it lacks behind it.
#include <fmt/format.h>

#include <algorithm>

#include "experiments/bench/bench.h"

namespace zeropp::experiments {
namespace {

/// nccl-tests' getFloatStr: as many digits as fit.
std::string fitted(double x, int width) {
  int digits = 2;
  for (double power = 10; x >= power && digits > -width; power *= 10) --digits;
  return fmt::format("{:.{}f}", x, std::clamp(digits + width - 5, 0, 2));
}

std::string half(const std::optional<BenchTime>& t, const BenchRow& row, int ranks) {
  if (!t) return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
  const std::string wrong = row.wrong ? fmt::format("{}", *row.wrong) : "N/A";
  return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", fitted(t->us, 7),
                     fitted(row.alg_gbs(*t), 6), fitted(row.bus_gbs(*t, ranks), 6), wrong);
}

std::string type_name(quant::Dtype dtype) {
  return dtype == quant::Dtype::kF32   ? "float"
         : dtype == quant::Dtype::kF16 ? "half"
                                       : "bfloat16";
}

}  // namespace

std::string bench_header(const BenchOptions& o) {
  std::string text = fmt::format(
      "# {} ranks, {} a node, transport {}, {}; {} calls a row after {} of warm-up\n"
      "# algbw and busbw count the numbers, not the wire, and are models: see xnode(B) for "
      "what "
      "leaves a node\n",
      o.ranks, o.ranks_per_node, o.transport, o.dtype, o.iterations, o.warmup);
  if (o.transport != "mpi") {
    text +=
        "# OpenMPI's own collectives are measured beside these under mpirun "
        "(--transport mpi)\n";
  }
  text += fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:^31}  {:^31}\n", "", "", "", "",
                      "", "out-of-place", "in-place");
  const char* columns =
      "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}"
      "  {:>6}  {:>6}  {:>6}  {:>11}  {:>11}  {:>9}  {:>9}  {:>9}\n";
  text += "#" + fmt::format(fmt::runtime(columns), "size", "count", "type", "redop", "root",
                            "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw",
                            "#wrong", "wire", "xnode", "encode", "decode", "nmse")
                    .substr(1);
  text += "#" + fmt::format(fmt::runtime(columns), "(B)", "(elements)", "", "", "", "(us)",
                            "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", "(B)",
                            "(B)", "(us)", "(us)", "")
                    .substr(1);
  return text;
}

std::string bench_title(const BenchCase& c) {
  return fmt::format("# {}, {}, {}\n", op_name(c.op), algorithm_name(c), c.codec);
}

std::string bench_line(const BenchRow& row, int ranks) {
  const BenchCase& c = row.what;
  const bool reduces = c.op == BenchOp::kAllReduce || c.op == BenchOp::kReduceScatter;
  const char* redop = reduces ? "avg" : c.op == BenchOp::kMpiAllReduce ? "sum" : "none";
  const auto optional = [](const std::optional<double>& x, const char* format) {
    return x ? fmt::format(fmt::runtime(format), *x) : std::string("-");
  };
  return fmt::format(
      "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}{}{}  {:>11}  {:>11}  {:>9}  {:>9}  "
      "{:>9}\n",
      c.bytes, c.count, type_name(c.dtype), redop, c.op == BenchOp::kBroadcast ? "0" : "-1",
      half(row.out_of_place, row, ranks), half(row.in_place, row, ranks), row.wire_bytes,
      row.xnode_bytes, optional(row.encode_us, "{:.1f}"), optional(row.decode_us, "{:.1f}"),
      row.wrong ? "0" : optional(row.nmse, "{:.2e}"));
}

std::string bench_footer(const std::vector<BenchRow>& rows, int ranks) {
  std::string text;
  for (const BenchRow& row : rows) {
    const BenchCase& c = row.what;
    if (c.codec == "exact") continue;
    const bool largest = std::none_of(rows.begin(), rows.end(), [&](const BenchRow& o) {
      return o.what.op == c.op && o.what.algorithm == c.algorithm && o.what.codec == c.codec &&
             o.what.bytes > c.bytes;
    });
    const auto exact = std::find_if(rows.begin(), rows.end(), [&](const BenchRow& o) {
      return o.what.op == c.op && o.what.algorithm == c.algorithm && o.what.codec == "exact" &&
             o.what.bytes == c.bytes;
    });
    if (!largest || exact == rows.end() || row.codec_us <= 0 ||
        exact->xnode_bytes <= row.xnode_bytes) {
      continue;
    }
    const double saved = static_cast<double>(exact->xnode_bytes - row.xnode_bytes);
    text += fmt::format(
        "# break-even: {} {} of {} bytes is faster through {} where a node sends below {:.3g} "
        "GB/s\n",
        op_name(c.op), algorithm_name(c), c.bytes, c.codec, saved / (row.codec_us * 1e3));
  }
  const auto [wrong, bus] = bench_totals(rows, ranks);
  text += fmt::format("# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED");
  text += fmt::format("# Avg bus bandwidth    : {:g} \n", bus);
  return text;
}

}  // namespace zeropp::experiments
