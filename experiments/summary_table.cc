// The people's side of summary.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/summary.h"
#include "experiments/text_table.h"

namespace zeropp::experiments {
namespace {

constexpr const char* kNone = "-";

std::string outer_link(const Json& summary) {
  return summary["cluster"]["levels"].back()["name"];
}

std::string number(const Json& value, const char* format) {
  return value.is_null() ? kNone : fmt::format(fmt::runtime(format), to_double(value));
}

std::string codecs_text(const Json& codecs) {
  const std::string weights = codecs["weights"];
  std::vector<std::string> levels = codecs["gradients"];
  if (std::set(levels.begin(), levels.end()).size() == 1) levels.resize(1);
  const std::string gradients = fmt::format("{}", fmt::join(levels, " > "));
  if (weights == "exact" && gradients == "exact") return "exact";
  if (weights == "exact") return "g " + gradients;
  if (gradients == "exact") return "w " + weights;
  return "w " + weights + ", g " + gradients;
}

std::string stage_text(const Json& v) {
  std::string text = std::to_string(v["stage"].get<int>());
  if (v["stage"] == 1 && v["all_reduce"] == true) text += " all-reduce";
  if (v["scheme"] != "") text += " " + v["scheme"].get<std::string>();
  if (v["secondary"] != "none") text += "+hpZ " + v["secondary"].get<std::string>();
  return text;
}

TextTable main_table(const Json& summary) {
  const std::string link = outer_link(summary);
  TextTable table{.header = {"variant", "stage", "codecs", "algorithm", "val loss", "diff",
                             link + " out/step", "reduction", "peak mem/rank"},
                  .rows = {},
                  .left = 4};
  for (const Json& v : summary["variants"]) {
    std::vector<std::string> row = {v["name"], stage_text(v), codecs_text(v["codecs"]),
                                    v["algorithm"]};
    if (v["traffic_per_step"].is_null()) {  // No seed finished.
      row.insert(row.end(), {v["status"], kNone, kNone, kNone, kNone});
    } else {
      const std::string status =
          v["status"] == "ok" ? "" : " (" + v["status"].get<std::string>() + ")";
      const Json& reduction = v["traffic_reduction"][link];
      row.insert(row.end(),
                 {number(v["loss"]["val_mean"], "{:.4f}") + status,
                  v["baseline"] == true ? "baseline"
                                        : number(v["loss"]["diff_to_baseline"], "{:+.4f}"),
                  human_bytes(to_double(v["traffic_per_step"][link]["bytes_out_max_node"])),
                  reduction.is_null() ? kNone : number(reduction, "{:.2f}x"),
                  human_bytes(to_double(v["memory_per_rank"]["peak_bytes"]))});
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// Psi units of what leaves a node, by content.
TextTable volume_table(const Json& summary) {
  TextTable table{.header = {"variant", "coded / own share", "coded tensors", "exact tensors",
                             "scales", "padding", "scalars", "total"},
                  .rows = {},
                  .left = 1};
  for (const Json& v : summary["variants"]) {
    const Json& volume = v["volume"];
    if (!volume.is_object()) continue;
    std::vector<std::string> row = {v["name"],
                                    number(volume["coded_over_own_share"], "{:.6g}")};
    for (const char* key :
         {"coded", "exact_tensors", "scales", "padding", "scalars", "total"}) {
      row.push_back(number(volume[key], "{:.4f}"));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// Of runs with more than one seed: one decides nothing.
TextTable verdict_table(const Json& summary) {
  TextTable table{.header = {"variant", "verdict", "why", "difference", "interval", "seeds"},
                  .rows = {},
                  .left = 3};
  if (!summary.contains("comparison") || summary["comparison"]["seeds"].size() < 2)
    return table;
  for (const Json& v : summary["variants"]) {
    const Json& verdict = v["verdict"];
    if (!verdict.is_object()) continue;
    const Json& interval = verdict["interval"];
    const std::string bounds =
        interval.is_array()
            ? fmt::format("{:+.4f} to {:+.4f}", to_double(interval[0]), to_double(interval[1]))
            : kNone;
    table.rows.push_back({v["name"], verdict["verdict"], verdict["reason"],
                          number(verdict["difference"], "{:+.4f}"), bounds,
                          std::to_string(verdict["seeds"].size())});
  }
  return table;
}

std::string verdict_caption(const Json& summary) {
  const Json& declared = summary["comparison"];
  return fmt::format(
      "Validation loss against the baseline, seed by seed; margin {:g} nats, {:g} % intervals, "
      "Holm over the variants:",
      to_double(declared["margin"]), 100 * (1 - 2 * to_double(declared["alpha"])));
}

TextTable state_table(const Json& summary) {
  TextTable table{
      .header = {"variant", "model states/rank", "formula", "sent/rank (Psi)", "collectives",
                 "step", "math", "codec", "communication", "modelled step"},
      .rows = {},
      .left = 1};
  for (const Json& v : summary["variants"]) {
    if (v["traffic_per_step"].is_null()) continue;
    const Json& memory = v["memory_per_rank"];
    const Json& time = v["time_per_step_s"];
    const auto seconds = [](const Json& s) {
      return s.is_null() ? kNone : fmt::format("{:.3g} ms", 1e3 * to_double(s));
    };
    table.rows.push_back({v["name"], human_bytes(to_double(memory["model_state_bytes"])),
                          human_bytes(to_double(memory["formula_bytes"])),
                          number(v["sent_per_rank"]["psi"], "{:.4g}"),
                          number(v["collectives_per_step"], "{:g}"), seconds(time["total"]),
                          seconds(time["math"]), seconds(time["codec"]),
                          seconds(time["communication"]), seconds(v["time_model_s"]["total"])});
  }
  return table;
}

std::string volume_caption(const Json& summary) {
  return fmt::format(
      "Out of a node over '{}' in one step, in units of (n-1)/n x Psi elements of "
      "the parameter dtype:",
      outer_link(summary));
}
constexpr const char* kStateCaption =
    "A rank in one step: model states at their peak, weights and gradients sent in units of "
    "(N-1)/N x Psi, and where its worker-seconds go:";

/// What a reader of the tables would not expect, a line each.
std::vector<std::string> notes(const Json& summary) {
  std::vector<std::string> lines;
  for (const Json& v : summary["variants"]) {
    const auto add = [&](const std::string& text) {
      lines.push_back(fmt::format("{}: {}", v["name"].get<std::string>(), text));
    };
    const Json& gradients = v["codecs"]["gradients"];
    const bool exact = v["codecs"]["weights"] == "exact" &&
                       std::all_of(gradients.begin(), gradients.end(),
                                   [](const Json& codec) { return codec == "exact"; });
    if (v["baseline"].get<bool>() && !exact) {
      add("is the baseline and has a codec; differences are not to an exact run");
    }
    for (const Json& seed : v["seeds"]) {
      if (!seed.contains("skipped_steps") || !seed["skipped_steps"].is_number()) continue;
      const auto skipped = seed["skipped_steps"].get<std::uint64_t>();
      if (skipped == 0) continue;
      add(fmt::format("seed {} skipped {} of {} steps for non-finite gradients",
                      seed["seed"].get<std::uint64_t>(), skipped,
                      v["steps"].get<std::uint64_t>()));
    }
    for (const Json& text : v["fallbacks"]) add(text.get<std::string>());
    for (const Json& key : v["ignored_keys"]) {
      add(key.get<std::string>() + " has no effect here");
    }
  }
  return lines;
}

std::string header_line(const Json& summary) {
  std::vector<std::string> levels;
  for (const Json& level : summary["cluster"]["levels"]) {
    levels.push_back(
        fmt::format("{} {}", level["name"].get<std::string>(), level["size"].get<int>()));
  }
  return fmt::format("{} parameters, {} ranks ({}), text '{}'",
                     summary["model"]["parameters"].get<std::uint64_t>(),
                     summary["cluster"]["ranks"].get<int>(), fmt::join(levels, " x "),
                     summary["dataset"]["name"].get<std::string>());
}

}  // namespace

std::string summary_table(const Json& summary) {
  std::string out = header_line(summary) + "\n\n" + main_table(summary).text();
  if (const TextTable verdicts = verdict_table(summary); !verdicts.rows.empty()) {
    out += "\n" + verdict_caption(summary) + "\n\n" + verdicts.text();
  }
  if (const TextTable volume = volume_table(summary); !volume.rows.empty()) {
    out += "\n" + volume_caption(summary) + "\n\n" + volume.text();
  }
  if (const TextTable states = state_table(summary); !states.rows.empty()) {
    out += std::string("\n") + kStateCaption + "\n\n" + states.text();
  }
  const auto lines = notes(summary);
  if (!lines.empty()) out += fmt::format("\nNotes:\n  {}\n", fmt::join(lines, "\n  "));
  return out;
}

std::string summary_markdown(const Json& summary, const std::string& title) {
  std::string out = "# " + title + "\n\n" + header_line(summary) + ". Program " +
                    summary["program"]["version"].get<std::string>() + ", git " +
                    summary["program"]["git"].get<std::string>() + ", " +
                    summary["program"]["cpu"].get<std::string>() + ".\n\n" +
                    main_table(summary).markdown();
  if (const TextTable verdicts = verdict_table(summary); !verdicts.rows.empty()) {
    out += "\n" + verdict_caption(summary) + "\n\n" + verdicts.markdown();
  }
  if (const TextTable volume = volume_table(summary); !volume.rows.empty()) {
    out += "\n" + volume_caption(summary) + "\n\n" + volume.markdown();
  }
  if (const TextTable states = state_table(summary); !states.rows.empty()) {
    out += std::string("\n") + kStateCaption + "\n\n" + states.markdown();
  }
  const auto lines = notes(summary);
  if (!lines.empty()) out += fmt::format("\nNotes:\n\n- {}\n", fmt::join(lines, "\n- "));
  return out;
}

}  // namespace zeropp::experiments
