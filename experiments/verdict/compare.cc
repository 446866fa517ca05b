#include "experiments/verdict/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "experiments/job_result.h"
#include "experiments/text_table.h"
#include "experiments/verdict/verdict_json.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

namespace fs = std::filesystem;

/// One variant of a results folder.
struct Side {
  fs::path folder;
  Json summary, variant;
  std::string name() const { return variant["name"]; }
  std::string label() const { return folder.string() + ":" + name(); }
};

struct Place {
  fs::path folder;
  std::string variant;  ///< Empty: not said.
};

Place place_of(const std::string& text) {
  const auto colon = text.rfind(':');
  if (!fs::exists(text) && colon != std::string::npos) {
    return {.folder = text.substr(0, colon), .variant = text.substr(colon + 1)};
  }
  return {.folder = text, .variant = ""};
}

Json summary_of(const fs::path& folder) {
  if (!fs::exists(folder / "summary.json")) {
    throw UsageError("compare", "a folder of finished results, with a summary.json",
                     "'" + folder.string() + "'");
  }
  Json summary = read_json(folder / "summary.json");
  if (!summary.is_object() || summary.value("schema", 0) != 1) {
    throw UsageError("compare", (folder / "summary.json").string() + " of schema 1", "another");
  }
  return summary;
}

/// The variants of a place that fit; all where none is said.
std::vector<Side> sides(const Place& place, bool baseline_alone) {
  const Json summary = summary_of(place.folder);
  std::vector<Side> found;
  std::vector<std::string> names;
  for (const Json& v : summary["variants"]) {
    names.push_back(v["name"]);
    const bool fits = !place.variant.empty() ? names.back() == place.variant
                                             : !baseline_alone || v["baseline"] == true;
    if (fits) found.push_back({place.folder, summary, v});
  }
  if (found.empty()) {
    throw UsageError(
        "compare",
        fmt::format("a variant of {}: {}", place.folder.string(), fmt::join(names, ", ")),
        "'" + place.variant + "'");
  }
  if (baseline_alone && place.variant.empty() && found.size() > 1) {  // A sweep's.
    throw UsageError("compare",
                     fmt::format("one baseline by name: {}:VARIANT", place.folder.string()),
                     fmt::format("{} baselines", found.size()));
  }
  return found;
}

const Json* seed_of(const Json& variant, std::uint64_t seed) {
  for (const Json& s : variant["seeds"]) {
    if (s["seed"] == seed) return &s;
  }
  return nullptr;
}

/// L0: losses and state equal to the bit, seed by seed.
bool identical(const Side& a, const Side& b, const Comparison& c) {
  return !c.seeds.empty() &&
         std::all_of(c.seeds.begin(), c.seeds.end(), [&](std::uint64_t seed) {
           const Json &x = *seed_of(a.variant, seed), &y = *seed_of(b.variant, seed);
           return x["losses_sha256"] == y["losses_sha256"] &&
                  x["state_sha256"] == y["state_sha256"];
         });
}

/// metrics.jsonl of one seed; empty where there is none.
std::vector<StepRecord> metrics(const Side& side, std::uint64_t seed) {
  const fs::path path =
      side.folder / side.name() / fmt::format("seed-{}", seed) / "metrics.jsonl";
  std::vector<StepRecord> steps;
  if (!fs::exists(path)) return steps;
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(parse_metrics_line(line, path.string()));
  }
  return steps;
}

/// One seed's steps on both sides.
struct Curves {
  std::uint64_t seed = 0;
  std::vector<StepRecord> a, b;
};

/// Empty if both made as many updates of as large a model with as many tokens of one text.
std::string unequal_work(const Side& a, const Side& b, const std::vector<Curves>& curves) {
  if (a.summary["dataset"]["sha256"] != b.summary["dataset"]["sha256"]) return "texts differ";
  if (a.variant["steps"] != b.variant["steps"]) {
    return fmt::format("{} and {} steps", a.variant["steps"].dump(), b.variant["steps"].dump());
  }
  const Json &p = a.summary["model"]["parameters"], &q = b.summary["model"]["parameters"];
  if (p != q) return fmt::format("models of {} and {} parameters", p.dump(), q.dump());
  for (const Curves& c : curves) {
    if (!c.a.empty() && !c.b.empty() && c.a.back().tokens != c.b.back().tokens) {
      return fmt::format("{} and {} tokens", c.a.back().tokens, c.b.back().tokens);
    }
  }
  for (const auto& [seed, one, two] : curves) {
    const Json &x = (*seed_of(a.variant, seed))["skipped_steps"],
               &y = (*seed_of(b.variant, seed))["skipped_steps"];
    if (x != y)
      return fmt::format("seed {}: {} and {} skipped steps", seed, x.dump(), y.dump());
  }
  return "";
}

/// What two curves of one seed show: steps are no samples, so there is no test.
Json within_run(const Curves& curves, double margin) {
  const auto& [seed, x, y] = curves;
  const std::size_t n = std::min(x.size(), y.size());
  if (n == 0) return nullptr;
  double tail = 0, most = 0;
  std::size_t at = 0, first = 0;
  const std::size_t from = n - std::max<std::size_t>(1, n / 4);
  for (std::size_t i = 0; i < n; ++i) {
    const double d = y[i].result.loss - x[i].result.loss;
    if (i >= from) tail += d / static_cast<double>(n - from);
    if (!(std::fabs(d) <= most)) {
      most = std::fabs(d);
      at = i + 1;
    }
    if (first == 0 && !(std::fabs(d) <= margin)) first = i + 1;
  }
  return {{"seed", seed},
          {"steps", n},
          {"mean_difference_last_quarter", tail},
          {"largest_difference", most},
          {"largest_at_step", at},
          {"first_step_beyond_margin", first == 0 ? Json() : Json(first)}};
}

Json row_of(const Side& a, const Side& b, const Comparison& c, const Declaration& declared) {
  Json row = {{"a", a.label()}, {"b", b.label()}};
  row.update(verdict_json(c, declared));
  row["identical"] = identical(a, b, c);
  std::vector<Curves> curves;
  for (const std::uint64_t seed : c.seeds) {
    curves.push_back({seed, metrics(a, seed), metrics(b, seed)});
  }
  const std::string work = unequal_work(a, b, curves);
  row["equal_work"] = work.empty();
  if (!work.empty()) row["work"] = work;
  row["within_this_run_only"] = Json::array();
  for (const Curves& seed : curves) {
    row["within_this_run_only"].push_back(within_run(seed, declared.margin));
  }
  return row;
}

std::string text_of(const Json& rows, const Declaration& declared) {
  std::string out = fmt::format(
      "Validation loss of B minus A, seed by seed; margin {:g} nats, {:g} % interval\n\n",
      declared.margin, 100 * (1 - 2 * declared.alpha));
  TextTable table{.header = {"A", "B", "verdict", "why", "difference", "interval", "seeds"},
                  .rows = {},
                  .left = 4};
  TextTable curves{.header = {"B", "seed", "steps", "mean of last quarter", "largest",
                              "at step", "first beyond margin"},
                   .rows = {},
                   .left = 1};
  std::vector<std::string> notes;
  for (const Json& row : rows) {
    const Json& i = row["interval"];
    table.rows.push_back(
        {row["a"], row["b"], row["verdict"], row["reason"],
         row["difference"].is_null() ? "-"
                                     : fmt::format("{:+.5f}", to_double(row["difference"])),
         i.is_null() ? "-"
                     : fmt::format("{:+.5f} to {:+.5f}", to_double(i[0]), to_double(i[1])),
         std::to_string(row["seeds"].size())});
    const std::string b = row["b"];
    if (row["identical"] == true)
      notes.push_back(b + ": losses and state are A's, bit for bit");
    if (row["detectable"] == true) {
      notes.push_back(b + ": a difference can be detected (95 % interval without 0)");
    }
    if (row.contains("work")) {
      notes.push_back(b + ": not equal work: " + row["work"].get<std::string>());
    }
    if (!row["unpaired_seeds"].empty()) {
      notes.push_back(fmt::format("{}: seeds of one side alone are left out: {}", b,
                                  row["unpaired_seeds"].dump()));
    }
    for (const Json& w : row["within_this_run_only"]) {
      if (w.is_null()) continue;
      const Json& first = w["first_step_beyond_margin"];
      curves.rows.push_back(
          {b, w["seed"].dump(), w["steps"].dump(),
           fmt::format("{:+.5f}", to_double(w["mean_difference_last_quarter"])),
           fmt::format("{:.5f}", to_double(w["largest_difference"])),
           w["largest_at_step"].dump(), first.is_null() ? "none" : first.dump()});
    }
  }
  out += table.text();
  if (!notes.empty()) out += fmt::format("\nNotes:\n  {}\n", fmt::join(notes, "\n  "));
  if (!curves.rows.empty()) {
    out +=
        "\nWithin this run only (training loss, step by step; no test, for steps of one run "
        "are not\nindependent):\n\n" +
        curves.text();
  }
  return out;
}

}  // namespace

int compare_command(const CompareOptions& o, std::ostream& out) {
  const Place a = place_of(o.a), b = place_of(o.b.empty() ? o.a : o.b);
  std::vector<std::pair<Side, Side>> pairs;
  if (o.b.empty()) {
    const Side base = sides(a, true).front();
    for (const Side& other : sides({.folder = a.folder, .variant = ""}, false)) {
      if (other.name() != base.name()) pairs.emplace_back(base, other);
    }
  } else if (a.variant.empty() && b.variant.empty()) {  // Same names against each other.
    for (const Side& x : sides(a, false)) {
      for (const Side& y : sides(b, false)) {
        if (x.name() == y.name()) pairs.emplace_back(x, y);
      }
    }
  } else {
    pairs.emplace_back(sides(a, true).front(), sides(b, true).front());
  }
  if (pairs.empty()) {
    throw UsageError("compare",
                     "two variants to compare (FOLDER:VARIANT), or folders with "
                     "variants of the same name",
                     "none");
  }
  const Json declared_in = pairs[0].first.summary.value("comparison", Json::object());
  Declaration declared;
  declared.margin = o.margin.value_or(
      declared_in.contains("margin") ? to_double(declared_in["margin"]) : declared.margin);
  declared.alpha = o.alpha.value_or(
      declared_in.contains("alpha") ? to_double(declared_in["alpha"]) : declared.alpha);
  if (!(declared.margin > 0)) {
    throw UsageError("--margin", "a number above 0", fmt::format("{}", declared.margin));
  }
  if (!(declared.alpha > 0 && declared.alpha < 0.5)) {
    throw UsageError("--alpha", "a number in (0, 0.5)", fmt::format("{}", declared.alpha));
  }
  // One family where all have the same A, as in a summary; else each pair is its own.
  std::vector<Comparison> found;
  if (o.b.empty()) {
    std::vector<Losses> others;
    for (const auto& [x, y] : pairs) others.push_back(losses_of(y.variant["seeds"]));
    const auto planned = declared_in.value("seeds", std::vector<std::uint64_t>());
    found =
        compare_variants(losses_of(pairs[0].first.variant["seeds"]), others, declared, planned);
  } else {
    for (const auto& [x, y] : pairs) {
      found.push_back(compare_variants(losses_of(x.variant["seeds"]),
                                       {losses_of(y.variant["seeds"])}, declared)
                          .at(0));
    }
  }
  Json rows = Json::array();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    rows.push_back(row_of(pairs[i].first, pairs[i].second, found[i], declared));
  }
  out << (o.json ? to_text(rows) + "\n" : text_of(rows, declared)) << std::flush;
  return 0;
}

}  // namespace zeropp::experiments
