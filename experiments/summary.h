#pragma once

#include <string>
#include <vector>

#include "experiments/json_io.h"
#include "experiments/run_config.h"
#include "zero/data.h"

namespace zeropp::experiments {

/// Where one job ended: result.json of a finished one, else its status and message.
struct JobEnd {
  std::uint64_t seed = 0;
  std::string status;  ///< "ok", "error", "killed".
  std::string message;
  std::string result;  ///< JSON text, empty unless ok.
};

/// summary.json, schema 1. jobs[v] are the ends of variant v, one a seed.
Json make_summary(const RunConfig& run, const zero::Dataset& data,
                  const std::vector<std::vector<JobEnd>>& jobs);

/// The table of a summary for a terminal, or as Markdown (summary.md).
std::string summary_table(const Json& summary);
std::string summary_markdown(const Json& summary, const std::string& title);

}  // namespace zeropp::experiments
