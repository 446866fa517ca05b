#include "experiments/job_store.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "experiments/job_result.h"
#include "experiments/program_info.h"
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

std::optional<Json> JobStore::finished(const std::string& dataset_sha256,
                                       const hierarchy::Topology& topology) const {
  try {
    // Throws where there is none. Every step has a line; one rank alone sends nothing.
    const auto metrics = fs::file_size(dir_ / "metrics.jsonl");
    const auto traffic = fs::file_size(dir_ / "traffic.jsonl");
    const Json status = read_json(dir_ / "status.json");
    Json result = read_json(dir_ / "result.json");
    if (status.value("status", "") == "ok" && result.value("hash", "") == variant_.hash &&
        result.value("dataset_sha256", "") == dataset_sha256 &&
        result.value("program", Json()) == program_identity() &&
        result.value("seed", Json()) == seed_ &&
        result.value("steps", Json()) == variant_.steps &&
        (metrics > 0 || variant_.steps == 0) && (traffic > 0 || topology.ranks() == 1)) {
      check_job_result(result, topology);
      return result;
    }
  } catch (const std::exception&) {
    // Not there, not ours, or of another version: the job is done again.
  }
  return std::nullopt;
}

void JobStore::begin() {
  remembering([&] {
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
    if (!metrics_) cannot_write(part, errno);
  });
}

void JobStore::append_metrics(std::string_view line) {
  remembering([&] {
    if (std::fwrite(line.data(), 1, line.size(), metrics_.get()) != line.size() ||
        std::fflush(metrics_.get()) != 0) {
      cannot_write(dir_ / "metrics.jsonl", errno);
    }
  });
}

void JobStore::close_metrics(bool keep) {
  const bool closed = metrics_ && std::fclose(metrics_.release()) == 0;
  const int error = errno;
  const fs::path part = dir_ / "metrics.jsonl.part", name = dir_ / "metrics.jsonl";
  std::error_code ec;
  if (!keep) {
    fs::remove(part, ec);
    return;
  }
  if (!closed) cannot_write(name, error);
  fs::rename(part, name, ec);
  if (ec) cannot_write(name, ec.value());
}

void JobStore::commit(const Json& result, std::string_view traffic) {
  remembering([&] {
    close_metrics(true);
    write_atomic(dir_ / "traffic.jsonl", traffic);
    write_atomic(dir_ / "result.json", to_text(result) + "\n");
    write_status("ok", "");
  });
}

void JobStore::fail(const std::string& status, const std::string& message) noexcept {
  std::error_code ec;
  try {
    close_metrics(status == "error" && write_error_.empty());
  } catch (const std::exception&) {
    fs::remove(dir_ / "metrics.jsonl.part", ec);
  }
  try {
    write_status(status, message);
  } catch (const std::exception&) {
    fs::remove(dir_ / "status.json", ec);  // "running" would be wrong.
  }
}

void JobStore::speak_for_root(const std::string& status,
                              const std::string& message) const noexcept {
  constexpr int looks = 15;
  try {
    for (int i = 0; i < looks; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Json json = read_json(dir_ / "status.json");
      if (json.value("status", "") != "running" || json.value("hash", "") != variant_.hash)
        return;
      if (i + 1 < looks) continue;
      json["status"] = status;
      json["finished"] = now();
      json["message"] = message + "; rank 0 said nothing";
      write_atomic(dir_ / "status.json", to_text(json) + "\n");
    }
  } catch (const std::exception&) {  // As it was: "running" is read as killed.
  }
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
