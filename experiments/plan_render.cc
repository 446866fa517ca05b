#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "experiments/plan.h"

namespace zeropp::experiments {
namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::string>;

constexpr double kGb = 1e9;

double gb(std::uint64_t bytes) { return static_cast<double>(bytes) / kGb; }

std::uint64_t optimizer_bytes(const zero::StateBytes& m) {
  return m.master + m.momentum + m.variance;
}

/// Decimals that show the smallest stage of this plan to about three digits.
int decimals(const Plan& plan) {
  std::uint64_t least = plan.rows.front().memory.total();
  for (const PlanRow& row : plan.rows) least = std::min(least, row.memory.total());
  int digits = 2;
  for (double value = gb(least); value < 1 && digits < 9; value *= 10) ++digits;
  return digits;
}

std::string format_table(const std::vector<Cells>& rows) {
  std::vector<std::size_t> width(rows.front().size());
  for (const Cells& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line = fmt::format("{:<{}}", rows[r][0], width[0]);
    for (std::size_t i = 1; i < rows[r].size(); ++i) {
      line += fmt::format("  {:>{}}", rows[r][i], width[i]);
    }
    text += line + "\n";
    if (r == 1) text += std::string(line.size(), '-') + "\n";  // Below the two header lines.
  }
  return text;
}

std::string table(const Plan& plan) {
  const int digits = decimals(plan);
  const auto number = [&](std::uint64_t bytes) {
    return fmt::format("{:.{}f}", gb(bytes), digits);
  };
  const auto optional = [&](std::uint64_t b) { return b == 0 ? std::string("-") : number(b); };
  const bool asked = plan.rank_memory > 0;
  std::vector<Cells> rows = {
      {"", "", "", "", "hpZ", "memory", "sent by", "inside", "across", "out of"},
      {"stage", "params", "grads", "optimizer", "copy", "total", "a rank", "node", "nodes",
       "a node"}};
  if (asked) {
    rows[0].insert(rows[0].begin() + 6, "fits");
    rows[1].insert(rows[1].begin() + 6, fmt::format("{:g} GB", gb(plan.rank_memory)));
  }
  for (const PlanRow& row : plan.rows) {
    const zero::StateBytes& m = row.memory;
    const PlanTraffic& t = row.traffic;
    Cells cells = {row.name,
                   number(m.params),
                   number(m.grads),
                   number(optimizer_bytes(m)),
                   optional(m.secondary),
                   number(m.total()),
                   optional(t.rank_max),
                   optional(t.node_rank_max),
                   optional(t.net_rank_max),
                   optional(t.net_node_max)};
    if (asked) cells.insert(cells.begin() + 6, row.fits ? "yes" : "no");
    rows.push_back(std::move(cells));
  }
  return format_table(rows);
}

std::string verdict(const Plan& plan) {
  if (plan.rank_memory == 0) return "";
  const double memory = gb(plan.rank_memory);
  if (plan.lowest_stage >= 0) {
    return fmt::format("Lowest stage that fits {:g} GB a rank: stage {}.\n\n", memory,
                       plan.lowest_stage);
  }
  std::string text = fmt::format("No stage fits {:g} GB a rank with {} rank{}", memory,
                                 plan.ranks, plan.ranks == 1 ? "" : "s");
  if (plan.ranks_for_stage3 == 0) return text + ".\n\n";
  return text + fmt::format("; stage 3 fits from {} ranks on.\n\n", plan.ranks_for_stage3);
}

std::string notes(const Plan& plan) {
  const char* grads = plan.layout == 16 ? "gradients 2" : "gradients 2 + 4 (fp32 accumulation)";
  return fmt::format(
      "Memory: the model states of one rank; bytes a parameter: parameters 2, {}, optimizer "
      "12\n"
      "(fp32 master, momentum, variance). Activations, gathered units and buffers come on "
      "top.\n"
      "Sent: by the busiest rank in one optimizer step of {} micro-step{}, in flat rings over "
      "all\n"
      "ranks (NCCL's algorithm), 16-bit values. \"inside node\" and \"across nodes\": the "
      "busiest\n"
      "rank on such links; in a ring the last rank of a node sends across, the others inside.\n"
      "\"out of a node\": what all its ranks together send across.\n",
      grads, plan.gas, plan.gas == 1 ? "" : "s");
}

/// "7.5B": the way model sizes are spoken of.
std::string short_count(std::uint64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.6g}B", value / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.6g}M", value / 1e6);
  return fmt::format("{}", count);
}

Json row_json(const Plan& plan, const PlanRow& row) {
  const zero::StateBytes& m = row.memory;
  const PlanTraffic& t = row.traffic;
  Json json;
  json["name"] = row.name;
  json["stage"] = row.policy.stage;
  json["secondary"] = row.policy.secondary;
  json["memory_per_rank"] = {{"params", m.params},
                             {"grads", m.grads},
                             {"optimizer", optimizer_bytes(m)},
                             {"secondary", m.secondary},
                             {"total", m.total()}};
  json["fits"] = plan.rank_memory > 0 ? Json(row.fits) : Json(nullptr);
  json["traffic_per_step"] = {{"bytes_out_max_rank", t.rank_max},
                              {"node", {{"bytes_out_max_rank", t.node_rank_max}}},
                              {"net",
                               {{"bytes_out_max_rank", t.net_rank_max},
                                {"bytes_out_max_node", t.net_node_max},
                                {"bytes_sum", t.net_sum}}}};
  return json;
}

}  // namespace

std::string plan_text(const Plan& plan) {
  return fmt::format(
             "{} parameters on {} rank{} ({} node{} of {}), {} bytes a parameter; GB = 1e9 "
             "bytes.\n\n",
             short_count(plan.params), plan.ranks, plan.ranks == 1 ? "" : "s",
             plan.ranks / plan.ranks_per_node, plan.ranks == plan.ranks_per_node ? "" : "s",
             plan.ranks_per_node, plan.layout) +
         table(plan) + "\n" + verdict(plan) + notes(plan);
}

std::string plan_json(const Plan& plan) {
  Json json;
  json["schema"] = 1;
  json["params"] = plan.params;
  json["ranks"] = plan.ranks;
  json["nodes"] = plan.ranks / plan.ranks_per_node;
  json["ranks_per_node"] = plan.ranks_per_node;
  json["layout"] = plan.layout;
  json["gradient_accumulation_steps"] = plan.gas;
  json["algorithm"] = "ring";
  json["wire_bytes_per_element"] = 2;
  json["rank_memory"] = plan.rank_memory > 0 ? Json(plan.rank_memory) : Json(nullptr);
  json["lowest_stage_that_fits"] =
      plan.lowest_stage >= 0 ? Json(plan.lowest_stage) : Json(nullptr);
  json["ranks_for_stage3"] =
      plan.ranks_for_stage3 > 0 ? Json(plan.ranks_for_stage3) : Json(nullptr);
  json["stages"] = Json::array();
  for (const PlanRow& row : plan.rows) json["stages"].push_back(row_json(plan, row));
  return json.dump(2) + "\n";
}

}  // namespace zeropp::experiments
