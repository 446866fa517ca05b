#pragma once

#include <cstdint>
#include <string>

#include "experiments/json_io.h"
#include "experiments/run_config.h"

namespace zeropp::experiments {

/// sweep.json and `--dry-run --json`: every variant with its seeds, axes, hash, the bytes a
/// step will send on each link class (first step; an upper bound where a codec's rate varies)
/// and the model states of the fullest rank. Nothing runs.
Json jobs_json(const RunConfig& run);
std::string jobs_table(const Json& jobs);

/// summary.csv: one row a job.
std::string summary_csv(const Json& summary);

/// Every key with type, default and meaning.
std::string keys_text();

/// MemAvailable in bytes; 0 = unknown.
std::uint64_t available_memory();
/// UsageError if the model states of all virtual ranks alone are more than `available` bytes.
void check_memory(const RunConfig& run, std::uint64_t available);

}  // namespace zeropp::experiments
