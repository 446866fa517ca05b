#pragma once

#include <filesystem>

namespace zeropp::experiments {

/// Keeps a run's folder to one process: flock(2) on DIR/.lock, held until destroyed or the
/// process ends. The file stays.
class RunLock {
 public:
  /// The folder exists. UsageError if another run holds it or no lock can be had.
  explicit RunLock(const std::filesystem::path& dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

}  // namespace zeropp::experiments
