#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <ostream>

#include "experiments/bench/bench.h"
#include "experiments/json_io.h"
#include "hierarchy/launch_env.h"
#include "hierarchy/transport/mpi.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

std::string now() { return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))); }

void check_options(const BenchOptions& o) {
  if (o.transport != "virtual" && o.transport != "mpi") {
    throw UsageError("--transport", "virtual or mpi", "'" + o.transport + "'");
  }
  if (o.iterations < 1) throw UsageError("--iters", "1 or more", std::to_string(o.iterations));
  if (o.warmup < 0) throw UsageError("--warmup_iters", "0 or more", std::to_string(o.warmup));
}

}  // namespace

int bench_command(const BenchOptions& given, std::ostream& out, std::ostream& err) {
  BenchOptions o = given;
  check_options(o);
  std::unique_ptr<hierarchy::MpiSession> session;
  if (o.transport == "mpi") {
    session = std::make_unique<hierarchy::MpiSession>();
    o.ranks = session->size();
    // All on one node unless the option divides them.
    if (o.ranks % o.ranks_per_node != 0) o.ranks_per_node = o.ranks;
  }
  const bool root = !session || session->rank() == 0;
  const auto cases = bench_cases(o);
  if (cases.empty()) {
    throw UsageError("--collective", "a row that can be measured",
                     "none: the ring does not reduce through codecs");
  }
  const std::string started = now();
  if (root && !o.json) out << bench_header(o) << std::flush;
  std::size_t done = 0;
  std::string title;
  const auto rows = run_bench(o, cases, [&](const BenchRow& row) {
    ++done;
    if (o.json) {
      if (o.terminal) err << fmt::format("\rbench {}/{} ", done, cases.size()) << std::flush;
      return;
    }
    const std::string here = bench_title(row.what);
    if (here != title) out << here;
    title = here;
    out << bench_line(row, o.ranks) << std::flush;
  });
  if (!root) return 0;
  if (o.json && o.terminal) err << "\r\033[K";
  out << (o.json ? bench_rows_json(rows, o) : bench_footer(rows, o.ranks)) << std::flush;
  if (!o.json_file.empty()) write_atomic(o.json_file, nccl_tests_json(rows, o, started));
  return std::all_of(rows.begin(), rows.end(),
                     [](const BenchRow& r) { return r.wrong.value_or(0) == 0; })
             ? 0
             : 1;
}

}  // namespace zeropp::experiments
