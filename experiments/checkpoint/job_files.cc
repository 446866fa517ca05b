#include "experiments/checkpoint/job_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "experiments/checkpoint/files.h"
#include "experiments/job_result.h"
#include "experiments/program_info.h"
#include "experiments/safetensors/reader.h"
#include "experiments/safetensors/writer.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kName = "checkpoint-";

struct Folder {
  std::uint64_t step = 0;
  fs::path path;
};

/// Whole ones, newest first; `rest` takes what was left of others.
std::vector<Folder> folders(const fs::path& dir, std::vector<fs::path>* rest = nullptr) {
  std::vector<Folder> found;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(dir, ec)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kName)) continue;
    Folder f{.step = 0, .path = entry.path()};
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kName.size(), end, f.step);
    if (parsed.ec == std::errc() && parsed.ptr == end) {
      found.push_back(std::move(f));
    } else if (rest != nullptr && name.find(".tmp") != std::string::npos) {
      rest->push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Folder& a, const Folder& b) { return a.step > b.step; });
  return found;
}

Json job_json(const JobIdentity& job, const JobCheckpoint& c) {
  return {{"hash", job.variant.hash},
          {"seed", job.seed},
          {"dataset_sha256", job.dataset_sha256},
          {"program", program_identity()},
          {"wall_seconds", c.wall_seconds},
          {"unreferenced_gathers", c.unreferenced_gathers}};
}

/// Empty if the job can go on from there.
std::string mismatch(const Json& j, const JobIdentity& job) {
  if (j.value("hash", "") != job.variant.hash) return "it is of another config";
  if (j.value("seed", Json()) != job.seed) return "it is of another seed";
  if (j.value("dataset_sha256", "") != job.dataset_sha256) return "it is of another text";
  if (j.value("program", Json()) != program_identity()) return "another program wrote it";
  return "";
}

JobCheckpoint read_job_checkpoint(const fs::path& path, const JobIdentity& job) {
  JobCheckpoint c;
  c.training = read_checkpoint(path, job.variant.model);
  try {
    const Json j = read_json(path / "zeropp_job.json");
    c.wall_seconds = to_double(j.at("wall_seconds"));
    j.at("unreferenced_gathers").get_to(c.unreferenced_gathers);
    const SafetensorsFile ranks(path / "ranks.safetensors");
    for (std::size_t r = 0; r < ranks.tensors().size(); ++r) {
      const SafeTensor* rank = ranks.find(fmt::format("rank.{}", r));
      if (rank == nullptr) throw UsageError("ranks", fmt::format("rank.{}", r), "none");
      c.ranks.push_back(unpack_result(ranks.read_bytes(*rank)));
    }
    std::istringstream metrics(read_text(path / "metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) {
      c.steps.push_back(parse_metrics_line(line, (path / "metrics.jsonl").string()));
    }
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& e) {
    throw UsageError("checkpoint " + path.string(), "what zeropp wrote", e.what());
  }
  if (c.steps.empty() && c.training.step > 0) {
    throw UsageError("checkpoint " + path.string(), "a line of metrics for each step", "none");
  }
  return c;
}

}  // namespace

void write_job_checkpoint(const fs::path& dir, const JobIdentity& job, const JobCheckpoint& c,
                          std::uint64_t keep) {
  std::vector<std::vector<std::byte>> packed;
  std::vector<TensorToWrite> ranks;
  for (const RankResult& r : c.ranks) packed.push_back(pack_result(r));
  for (std::size_t r = 0; r < packed.size(); ++r) {
    ranks.push_back({.name = fmt::format("rank.{}", r),
                     .dtype = "U8",
                     .shape = {packed[r].size()},
                     .data = packed[r]});
  }
  std::string metrics;
  for (const StepRecord& step : c.steps) metrics += metrics_line(step);
  const fs::path path = dir / fmt::format("{}{}", kName, c.training.step);
  write_checkpoint(path, job.variant.model, c.training, [&](const fs::path& temporary) {
    write_safetensors(temporary / "ranks.safetensors", std::move(ranks), {{"format", "pt"}});
    write_atomic(temporary / "metrics.jsonl", metrics);
    sync_to_disk(temporary / "metrics.jsonl");
    write_atomic(temporary / "zeropp_job.json", to_text(job_json(job, c)) + "\n");
    sync_to_disk(temporary / "zeropp_job.json");
  });
  if (keep == 0) return;
  std::error_code ec;
  const auto all = folders(dir);
  for (std::size_t i = keep; i < all.size(); ++i) fs::remove_all(all[i].path, ec);
}

std::optional<JobCheckpoint> newest_job_checkpoint(const fs::path& dir, const JobIdentity& job,
                                                   std::string& why_not) {
  for (const Folder& f : folders(dir)) {
    std::string why;
    try {
      why = mismatch(read_json(f.path / "zeropp_job.json"), job);
      if (why.empty()) return read_job_checkpoint(f.path, job);
    } catch (const std::exception& e) {
      why = e.what();
    }
    why_not += fmt::format("{}{}: {}", why_not.empty() ? "" : "; ", f.path.string(), why);
  }
  return std::nullopt;
}

void remove_job_checkpoints(const fs::path& dir) {
  std::vector<fs::path> gone;
  for (const Folder& f : folders(dir, &gone)) gone.push_back(f.path);
  std::error_code ec;
  for (const fs::path& path : gone) fs::remove_all(path, ec);
}

}  // namespace zeropp::experiments
