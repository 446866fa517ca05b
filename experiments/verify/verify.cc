#include "experiments/verify/verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

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
    const std::function<void(std::size_t, std::size_t)>& progress) {
  std::map<std::string, Trace> references;
  std::vector<CellResult> results;
  for (const Cell& cell : cells) {
    const Cell base = reference_of(cell);
    auto [it, fresh] = references.try_emplace(label(base));
    if (fresh) it->second = run_cell(base, options.steps);
    CellResult result{.cell = cell, .difference = {}};
    try {
      const Trace found = run_cell(cell, options.steps, options.sabotage);
      result.difference = first_difference(it->second, found).value_or("");
    } catch (const TransportError& e) {  // Law 3, or a rank that failed.
      result.difference = e.what();
    }
    results.push_back(std::move(result));
    if (progress) progress(results.size(), cells.size());
  }
  return results;
}

int verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& err) {
  if (options.steps < 1)
    throw UsageError("--steps", "at least 1", std::to_string(options.steps));
  auto cells = options.full ? full_cells() : pairwise_cells();
  std::erase_if(
      cells, [&](const Cell& c) { return label(c).find(options.filter) == std::string::npos; });
  if (cells.empty()) {
    throw UsageError("--filter", "part of a label that `zeropp verify --list` prints",
                     "'" + options.filter + "'");
  }
  if (options.list) {
    for (const Cell& c : cells) out << label(c) << '\n';
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto results = verify_cells(cells, options, [&](std::size_t done, std::size_t total) {
    const double eta =
        elapsed() / static_cast<double>(done) * static_cast<double>(total - done);
    if (terminal) {
      err << fmt::format("\rverify {}/{}, {:.0f} s left ", done, total, eta) << std::flush;
    } else if (done % 100 == 0) {
      err << fmt::format("verify {}/{}, {:.0f} s left\n", done, total, eta);
    }
  });
  if (terminal) err << "\r\033[K";
  (options.json ? print_json : print_text)(results, count_references(results), elapsed(), out);
  const bool ok = std::all_of(results.begin(), results.end(),
                              [](const CellResult& r) { return r.difference.empty(); });
  return ok ? 0 : 1;
}

}  // namespace zeropp::experiments::verify
