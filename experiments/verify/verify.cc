#include "experiments/verify/verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "experiments/processes.h"
#include "experiments/verify/trace.h"
#include "quant/error.h"

namespace zeropp::experiments::verify {
namespace {

struct FamilyCount {
  std::size_t cells = 0, failed = 0;
};

std::map<std::string, FamilyCount> by_family(const std::vector<CellResult>& results) {
  std::map<std::string, FamilyCount> families;
  for (const CellResult& r : results) {
    FamilyCount& f = families[schemes()[static_cast<std::size_t>(r.cell.scheme)].family];
    ++f.cells;
    f.failed += r.difference.empty() ? 0 : 1;
  }
  return families;
}

void print_text(const std::vector<CellResult>& results, std::size_t references, double seconds,
                std::ostream& out) {
  for (const CellResult& r : results) {
    if (!r.difference.empty()) {
      out << fmt::format("DIFFERS  {}\n         {}\n", label(r.cell), r.difference);
    }
  }
  out << fmt::format("{:<20}{:>8}{:>10}{:>10}\n", "family", "runs", "equal", "differ");
  for (const auto& [name, f] : by_family(results)) {
    out << fmt::format("{:<20}{:>8}{:>10}{:>10}\n", name, f.cells, f.cells - f.failed,
                       f.failed);
  }
  out << fmt::format(
      "{} runs against {} references, bit for bit (losses, masters and moments after every "
      "step; "
      "replicas compared at every gather), {:.1f} s\n",
      results.size(), references, seconds);
}

void print_json(const std::vector<CellResult>& results, std::size_t references, double seconds,
                std::ostream& out) {
  nlohmann::ordered_json j;
  j["runs"] = results.size();
  j["references"] = references;
  j["seconds"] = seconds;
  j["families"] = nlohmann::ordered_json::array();
  for (const auto& [name, f] : by_family(results)) {
    j["families"].push_back({{"name", name}, {"runs", f.cells}, {"differ", f.failed}});
  }
  j["differences"] = nlohmann::ordered_json::array();
  for (const CellResult& r : results) {
    if (!r.difference.empty()) {
      j["differences"].push_back({{"run", label(r.cell)}, {"first_difference", r.difference}});
    }
  }
  out << j.dump(2) << '\n';
}

std::size_t count_references(const std::vector<CellResult>& results) {
  std::vector<std::string> labels;
  for (const CellResult& r : results) labels.push_back(label(reference_of(r.cell)));
  std::sort(labels.begin(), labels.end());
  return static_cast<std::size_t>(std::unique(labels.begin(), labels.end()) - labels.begin());
}

}  // namespace

std::vector<CellResult> verify_cells(
    const std::vector<Cell>& cells, const VerifyOptions& options,
    const std::function<void(std::size_t, std::size_t)>& progress, const RankPlace& place) {
  std::map<std::string, Trace> references;
  std::vector<CellResult> results;
  for (const Cell& cell : cells) {
    const Cell base = reference_of(cell);
    auto [it, fresh] = references.try_emplace(label(base));
    const RankPlace here{.timeout = place.timeout};
    if (fresh && place.root()) {
      it->second = run_cell(base, options.steps, zero::Sabotage::kNone, here);
    }
    CellResult result{.cell = cell, .difference = {}};
    try {
      const Trace found = run_cell(cell, options.steps, options.sabotage, place);
      if (place.root()) result.difference = first_difference(it->second, found).value_or("");
    } catch (const TransportError& e) {  // Law 3, or a rank that failed.
      if (place.mpi != nullptr) throw TransportError(label(cell) + ": " + e.what());
      result.difference = e.what();
    }
    results.push_back(std::move(result));
    if (progress) progress(results.size(), cells.size());
  }
  return results;
}

namespace {

std::vector<Cell> chosen_cells(const VerifyOptions& options, int processes) {
  if (options.steps < 1)
    throw UsageError("--steps", "at least 1", std::to_string(options.steps));
  auto cells = options.full ? full_cells() : pairwise_cells();
  if (processes > 0) {
    const auto ranks = [](const Cell& c) {
      return topologies()[static_cast<std::size_t>(c.topology)].ranks();
    };
    std::erase_if(cells, [&](const Cell& c) { return ranks(c) != processes; });
    if (cells.empty()) {
      throw UsageError("--transport", "mpirun -np 1, 2, 3, 4, 6 or 8: ranks of the matrix",
                       fmt::format("{} processes", processes));
    }
  }
  std::erase_if(
      cells, [&](const Cell& c) { return label(c).find(options.filter) == std::string::npos; });
  if (cells.empty()) {
    throw UsageError("--filter", "part of a label that `zeropp verify --list` prints",
                     "'" + options.filter + "'");
  }
  std::vector<Cell> some;
  for (std::size_t i = 0; i < cells.size(); i += static_cast<std::size_t>(options.every)) {
    some.push_back(cells[i]);
  }
  return some;
}

/// All cells; what is printed is rank 0's.
int verify_chosen(const std::vector<Cell>& cells, const VerifyOptions& options,
                  const RankPlace& place, std::ostream& out, std::ostream& err) {
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto progress = [&](std::size_t done, std::size_t total) {
    if (!place.root()) return;
    const double eta =
        elapsed() / static_cast<double>(done) * static_cast<double>(total - done);
    if (terminal) {
      err << fmt::format("\rverify {}/{}, {:.0f} s left ", done, total, eta) << std::flush;
    } else if (done % 100 == 0) {
      err << fmt::format("verify {}/{}, {:.0f} s left\n", done, total, eta);
    }
  };
  const auto results = verify_cells(cells, options, progress, place);
  if (!place.root()) return 0;
  if (terminal) err << "\r\033[K";
  if (place.mpi != nullptr && !options.json) {
    out << fmt::format("{} MPI processes against virtual ranks\n", place.mpi->size());
  }
  (options.json ? print_json : print_text)(results, count_references(results), elapsed(), out);
  const bool ok = std::all_of(results.begin(), results.end(),
                              [](const CellResult& r) { return r.difference.empty(); });
  return ok ? 0 : 1;
}

/// One of several processes under mpirun.
int verify_processes(const VerifyOptions& options, Processes& processes, std::ostream& out,
                     std::ostream& err) {
  std::vector<Cell> cells;
  if (!processes.prepare(err, [&] { cells = chosen_cells(options, processes.size()); })) {
    return 2;
  }
  const hierarchy::MpiSession session;
  const RankPlace place{.mpi = &session,
                        .timeout = std::chrono::milliseconds(
                            static_cast<std::int64_t>(options.timeout_s * 1000))};
  try {
    const int code = verify_chosen(cells, options, place, out, err);
    return processes.decide([&] { return code != 0; }) ? 1 : 0;
  } catch (const std::exception& e) {  // Messages may be in flight.
    err << fmt::format("zeropp: rank {}: {}\n", session.rank(), e.what()) << std::flush;
    processes.end_all(1);
  }
}

}  // namespace

int verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& err) {
  if (!options.list) {
    Processes processes;
    if (options.transport == "mpi") return verify_processes(options, processes, out, err);
    const bool good = processes.prepare(err, [&] {
      if (!processes.several()) return;
      throw UsageError("--transport", fmt::format("mpi for {} processes", processes.size()),
                       options.transport);
    });
    if (!good) return 2;
  }
  const auto cells = chosen_cells(options, 0);
  if (options.list) {
    for (const Cell& c : cells) out << label(c) << '\n';
    return 0;
  }
  return verify_chosen(cells, options, {}, out, err);
}

}  // namespace zeropp::experiments::verify
