#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "experiments/bench/bench.h"
#include "hierarchy/transport/mpi.h"
#include "quant/error.h"
#include "quant/registry.h"

namespace zeropp::experiments {
namespace {

using hierarchy::Algorithm;

struct OpInfo {
  BenchOp op;
  const char* name;
  int bus_numerator;  ///< Of (n-1)/n; 0: busbw = algbw.
  bool ring, codecs;
};
constexpr std::array kOps{OpInfo{BenchOp::kAllReduce, "all_reduce", 2, true, true},
                          OpInfo{BenchOp::kAllGather, "all_gather", 1, true, true},
                          OpInfo{BenchOp::kReduceScatter, "reduce_scatter", 1, true, true},
                          OpInfo{BenchOp::kAllToAll, "all_to_all", 1, false, true},
                          OpInfo{BenchOp::kBroadcast, "broadcast", 0, true, true},
                          OpInfo{BenchOp::kBarrier, "barrier", 0, false, false},
                          OpInfo{BenchOp::kMpiAllReduce, "MPI_Allreduce", 2, false, false},
                          OpInfo{BenchOp::kMpiAllGather, "MPI_Allgather", 1, false, false}};

const OpInfo& info(BenchOp op) { return kOps.at(static_cast<std::size_t>(op)); }
bool is_peer(BenchOp op) { return op >= BenchOp::kMpiAllReduce; }

std::vector<BenchOp> chosen_ops(const BenchOptions& o) {
  std::vector<BenchOp> ops;
  std::vector<std::string> names;
  for (const OpInfo& i : kOps) {
    if (!is_peer(i.op)) names.emplace_back(i.name);
  }
  for (const std::string& name : o.collectives) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      throw UsageError("--collective", fmt::format("one of {}", fmt::join(names, ", ")),
                       "'" + name + "'");
    }
    ops.push_back(kOps.at(static_cast<std::size_t>(found - names.begin())).op);
  }
  if (ops.empty()) {
    for (const OpInfo& i : kOps) {
      if (!is_peer(i.op)) ops.push_back(i.op);
    }
  }
  const auto wants = [&](BenchOp op) {
    return std::find(ops.begin(), ops.end(), op) != ops.end();
  };
  if (o.transport == "mpi" && o.dtype == "fp32") {
    const bool reduce = wants(BenchOp::kAllReduce), gather = wants(BenchOp::kAllGather);
    if (reduce) ops.push_back(BenchOp::kMpiAllReduce);
    if (gather) ops.push_back(BenchOp::kMpiAllGather);
  }
  return ops;
}

std::vector<Algorithm> algorithms_for(const OpInfo& i, const std::string& codec,
                                      const std::vector<Algorithm>& chosen) {
  if (is_peer(i.op) || i.op == BenchOp::kBarrier) return {Algorithm::kAllToAll};
  std::vector<Algorithm> list;
  const bool reduces = i.op == BenchOp::kAllReduce || i.op == BenchOp::kReduceScatter;
  for (const Algorithm a : chosen) {
    const bool coded_ring = a == Algorithm::kRing && reduces && codec != "exact";
    if ((a != Algorithm::kRing || i.ring) && !coded_ring) list.push_back(a);
  }
  return list;
}

std::vector<std::uint64_t> sizes(const BenchOptions& o) {
  const std::uint64_t least = parse_nccl_size(o.min_bytes, "--minbytes");
  const std::uint64_t most = parse_nccl_size(o.max_bytes, "--maxbytes");
  if (least > most) {
    throw UsageError("--minbytes", "at most --maxbytes = " + o.max_bytes, o.min_bytes);
  }
  if (o.step_bytes.empty() && !(o.step_factor > 1)) {
    throw UsageError("--stepfactor", "more than 1", fmt::format("{}", o.step_factor));
  }
  const std::uint64_t step =
      o.step_bytes.empty() ? 0 : parse_nccl_size(o.step_bytes, "--stepbytes");
  if (!o.step_bytes.empty() && step == 0) throw UsageError("--stepbytes", "1 or more", "0");
  constexpr std::size_t kMost = 10'000;
  std::vector<std::uint64_t> list;
  for (std::uint64_t bytes = least; bytes <= most;) {
    list.push_back(bytes);
    if (list.size() > kMost) {
      throw UsageError("--stepbytes", fmt::format("at most {} sizes", kMost), "more");
    }
    const auto grown = static_cast<std::uint64_t>(static_cast<double>(bytes) * o.step_factor);
    bytes = step != 0 ? bytes + step : std::max(bytes + 1, grown);
  }
  return list;
}

}  // namespace

std::uint64_t parse_nccl_size(const std::string& text, const std::string& area) {
  std::uint64_t n = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, n);
  const std::string unit(rest, end);
  int shift = -1;
  for (const auto& [name, bits] : {std::pair{"", 0}, {"K", 10}, {"M", 20}, {"G", 30}}) {
    if (unit == name ||
        (unit.size() == 1 && std::string{static_cast<char>(std::toupper(unit[0]))} == name)) {
      shift = bits;
    }
  }
  if (error != std::errc() || shift < 0 || n > (std::uint64_t{1} << 40) >> shift) {
    throw UsageError(area, "a size such as 1000, 64K, 16M or 1G (powers of 1024), up to 1024G",
                     "'" + text + "'");
  }
  return n << shift;
}

std::string op_name(BenchOp op) { return info(op).name; }

std::string algorithm_name(const BenchCase& c) {
  return is_peer(c.op) || c.op == BenchOp::kBarrier ? "-"
                                                    : std::string(hierarchy::name(c.algorithm));
}

double bus_factor(BenchOp op, int ranks) {
  const int numerator = info(op).bus_numerator;
  return numerator == 0 ? 1.0 : numerator * (ranks - 1.0) / ranks;
}

hierarchy::Topology bench_topology(const BenchOptions& o) {
  if (o.ranks < 1 || o.ranks > 16384) {
    throw UsageError("--ranks", "1 to 16384", std::to_string(o.ranks));
  }
  if (o.ranks_per_node < 1 || o.ranks % o.ranks_per_node != 0) {
    throw UsageError("--ranks-per-node", fmt::format("a divisor of the {} ranks", o.ranks),
                     std::to_string(o.ranks_per_node));
  }
  return hierarchy::Topology::two_level(o.ranks / o.ranks_per_node, o.ranks_per_node);
}

std::vector<BenchCase> bench_cases(const BenchOptions& o) {
  (void)bench_topology(o);  // Refuses counts that sizes would be divided by.
  const quant::Dtype dtype = quant::parse_dtype(o.dtype);
  std::vector<Algorithm> algorithms{Algorithm::kRing, Algorithm::kAllToAll,
                                    Algorithm::kHierarchical};
  if (!o.algorithms.empty()) {
    algorithms.clear();
    for (const std::string& a : o.algorithms) {
      algorithms.push_back(hierarchy::parse_algorithm(a));
      if (algorithms.back() == Algorithm::kNative) {
        throw UsageError("--algorithm", "ring, all_to_all or hierarchical", "native");
      }
    }
  }
  std::vector<std::string> codecs = o.codecs;
  if (codecs.empty()) codecs = {"exact"};
  for (std::string& codec : codecs) {
    if (codec == "exact") continue;
    const auto made = quant::make_codec(codec, dtype);
    const quant::CodecTraits traits = made->traits();
    if (traits.stateful || traits.difference) {
      throw UsageError("--codec", "a codec that keeps nothing between calls", codec);
    }
    codec = made->spec();
  }
  std::vector<BenchCase> cases;
  for (const BenchOp op : chosen_ops(o)) {
    const OpInfo& i = info(op);
    for (const std::string& codec : codecs) {
      if (codec != "exact" && !i.codecs) continue;
      for (const Algorithm algorithm : algorithms_for(i, codec, algorithms)) {
        BenchCase c{.op = op, .algorithm = algorithm, .codec = codec, .dtype = dtype};
        if (op == BenchOp::kBarrier) {
          cases.push_back(c);
          continue;
        }
        for (const std::uint64_t bytes : sizes(o)) {
          // Whole elements for each rank, as nccl-tests cuts sizes.
          const auto unit = quant::size_of(dtype) * static_cast<std::uint64_t>(o.ranks);
          c.bytes = bytes / unit * unit;
          c.count = c.bytes / quant::size_of(dtype);
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

BenchTotals bench_totals(const std::vector<BenchRow>& rows, int ranks) {
  BenchTotals totals;
  std::size_t count = 0;
  for (const BenchRow& row : rows) {
    totals.wrong += row.wrong.value_or(0);
    if (row.what.op == BenchOp::kBarrier) continue;
    for (const auto& t : {std::optional(row.out_of_place), row.in_place}) {
      if (!t) continue;
      totals.bus_gbs += row.bus_gbs(*t, ranks);
      ++count;
    }
  }
  if (count > 0) totals.bus_gbs /= static_cast<double>(count);
  return totals;
}

double BenchRow::alg_gbs(const BenchTime& t) const {
  return t.us > 0 ? static_cast<double>(what.bytes) / (t.us * 1e3) : 0;
}
double BenchRow::bus_gbs(const BenchTime& t, int ranks) const {
  return alg_gbs(t) * bus_factor(what.op, ranks);
}

}  // namespace zeropp::experiments
