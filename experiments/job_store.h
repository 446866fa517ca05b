#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "experiments/json_io.h"
#include "experiments/run_config.h"

namespace zeropp::experiments {

/// Folder of one variant and seed, DIR/<variant>/seed-<s>: config.json, status.json,
/// metrics.jsonl, traffic.jsonl, result.json. While the job runs status.json says "running" and
/// the other outputs have temporary names; a status left so means that the job was killed.
class JobStore {
 public:
  JobStore(const std::filesystem::path& root, const VariantConfig& variant, std::uint64_t seed);

  /// The stored result if the job is finished, by this program, with this variant's hash and
  /// this text, and all its files are there.
  std::optional<Json> finished(const std::string& dataset_sha256,
                               const hierarchy::Topology& topology) const;

  /// Removes what an earlier run left, writes config.json and status "running". This and the
  /// next two throw UsageError where they cannot write, and remember it.
  void begin();
  void append_metrics(std::string_view line);
  /// All outputs are there under their names when status becomes "ok".
  void commit(const Json& result, std::string_view traffic);
  /// status "error" (metrics so far are kept, unless writing failed) or "killed" (they are
  /// not). Does not throw: what ended the job is what counts.
  void fail(const std::string& status, const std::string& message) noexcept;

  /// For other processes than rank 0's, which writes how the job ended: if it has not a while
  /// later (status.json says "running" still), it is dead, and this process writes it.
  void speak_for_root(const std::string& status, const std::string& message) const noexcept;

  /// Writes something of the job's and remembers an error, which goes on.
  template <class Write>
  void remembering(const Write& write) {
    try {
      write();
    } catch (const std::exception& e) {
      if (write_error_.empty()) write_error_ = e.what();
      throw;
    }
  }
  /// The first error of writing, empty if there was none.
  const std::string& write_error() const { return write_error_; }

  const std::filesystem::path& dir() const { return dir_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  void write_status(const std::string& status, const std::string& message) const;
  void close_metrics(bool keep);

  std::filesystem::path dir_;
  const VariantConfig& variant_;
  std::uint64_t seed_;
  std::string started_;
  std::string write_error_;
  std::unique_ptr<std::FILE, CloseFile> metrics_;
};

}  // namespace zeropp::experiments
