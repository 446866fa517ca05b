#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "experiments/job_checkpoint.h"
#include "experiments/run_config.h"

namespace zeropp::experiments {

/// Whose checkpoints they are: only a job that would compute the same goes on from them.
struct JobIdentity {
  const VariantConfig& variant;
  std::uint64_t seed = 0;
  std::string dataset_sha256;
};

/// Folders checkpoint-<step> in a job's folder: those of files.h, and beside them
///   metrics.jsonl       the steps so far
///   ranks.safetensors   "rank.<r>": bytes of each rank's RankResult
///   zeropp_job.json     hash, seed, data, program
/// Keeps the newest `keep` (0: all). UsageError where it cannot be written; older ones stay.
void write_job_checkpoint(const std::filesystem::path& dir, const JobIdentity& job,
                          const JobCheckpoint& checkpoint, std::uint64_t keep);

/// The newest whole one of this job, by this program. `why_not` says of newer ones why they are
/// of no use.
std::optional<JobCheckpoint> newest_job_checkpoint(const std::filesystem::path& dir,
                                                   const JobIdentity& job,
                                                   std::string& why_not);

/// Removes all checkpoint-<step> folders, and what was left of unfinished ones.
void remove_job_checkpoints(const std::filesystem::path& dir);

}  // namespace zeropp::experiments
