#include "experiments/job_store.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <system_error>

#include "quant/error.h"

namespace zeropp::experiments {
namespace {

namespace fs = std::filesystem;

std::string now() { return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))); }

}  // namespace

JobStore::JobStore(const fs::path& root, const VariantConfig& variant, std::uint64_t seed)
    : dir_(root / variant.name / fmt::format("seed-{}", seed)),
      variant_(variant),
      seed_(seed) {}

std::optional<Json> JobStore::finished(const std::string& dataset_sha256) const {
  std::error_code ec;
  if (!fs::exists(dir_ / "status.json", ec) || !fs::exists(dir_ / "result.json", ec)) {
    return std::nullopt;
  }
  try {
    const Json status = read_json(dir_ / "status.json");
    Json result = read_json(dir_ / "result.json");
    if (status.value("status", "") == "ok" && result.value("hash", "") == variant_.hash &&
        result.value("dataset_sha256", "") == dataset_sha256) {
      return result;
    }
  } catch (const std::exception&) {
    // Not ours, or of another version: the job is done again.
  }
  return std::nullopt;
}

void JobStore::begin() {
  make_directory(dir_);
  std::error_code ec;
  for (const char* name :
       {"result.json", "metrics.jsonl", "traffic.jsonl", "metrics.jsonl.part"}) {
    fs::remove(dir_ / name, ec);
  }
  started_ = now();
  write_status("running", "");
  write_atomic(dir_ / "config.json", job_config(variant_, seed_));
  const fs::path part = dir_ / "metrics.jsonl.part";
  metrics_.reset(std::fopen(part.c_str(), "wb"));
  if (!metrics_) {
    throw UsageError("output", "a file that can be written",
                     part.string() + ": " + std::strerror(errno));
  }
}

void JobStore::append_metrics(std::string_view line) {
  if (std::fwrite(line.data(), 1, line.size(), metrics_.get()) != line.size() ||
      std::fflush(metrics_.get()) != 0) {
    throw UsageError("output", "room for " + (dir_ / "metrics.jsonl").string(),
                     std::strerror(errno));
  }
}

void JobStore::close_metrics(bool keep) {
  metrics_.reset();
  std::error_code ec;
  const fs::path part = dir_ / "metrics.jsonl.part";
  if (keep) {
    fs::rename(part, dir_ / "metrics.jsonl", ec);
  } else {
    fs::remove(part, ec);
  }
}

void JobStore::commit(const Json& result, std::string_view traffic) {
  close_metrics(true);
  write_atomic(dir_ / "traffic.jsonl", traffic);
  write_atomic(dir_ / "result.json", to_text(result) + "\n");
  write_status("ok", "");
}

void JobStore::fail(const std::string& status, const std::string& message) {
  close_metrics(status == "error");
  write_status(status, message);
}

void JobStore::write_status(const std::string& status, const std::string& message) const {
  Json json = {{"status", status},
               {"variant", variant_.name},
               {"seed", seed_},
               {"hash", variant_.hash},
               {"started", started_}};
  if (status != "running") json["finished"] = now();
  if (!message.empty()) json["message"] = message;
  write_atomic(dir_ / "status.json", to_text(json) + "\n");
}

}  // namespace zeropp::experiments
