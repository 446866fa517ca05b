#pragma once

#include <string>
#include <string_view>

#include "experiments/job.h"
#include "experiments/json_io.h"

namespace zeropp::experiments {

/// result.json of a finished job: all that the summary needs of it. Also says what it is the
/// result of: program, variant hash, seed, text.
Json job_result(const RunConfig& run, const VariantConfig& variant, std::uint64_t seed,
                const zero::Dataset& data, const JobOutcome& outcome);

/// Throws unless `result` has everything of job_result that a summary reads.
void check_job_result(const Json& result, const hierarchy::Topology& topology);

/// metrics.jsonl, one line (with its newline).
std::string metrics_line(const StepRecord& record);
/// The opposite, but for what a line does not hold. Throws where it is no such line.
StepRecord parse_metrics_line(std::string_view line, const std::string& source);
/// traffic.jsonl: one line for each rank, link class, collective, algorithm, phase, role, hop.
std::string traffic_lines(const RunConfig& run, const JobOutcome& outcome);

}  // namespace zeropp::experiments
