#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>

namespace zeropp::experiments {

/// Says on a stream how far a run is: one line rewritten in place on a terminal, with the time
/// left, else a plain line a job.
class Progress {
 public:
  Progress(std::ostream& out, bool terminal, std::uint64_t total_steps, std::size_t jobs);

  /// A finished job's steps do not count towards the speed.
  void skip_job(const std::string& name, std::uint64_t steps);
  void begin_job(const std::string& name, std::uint64_t steps);
  void step(std::uint64_t step, double loss);
  void end_job(const std::string& result);

 private:
  void show(const std::string& text);  ///< Rewrites the line.
  void line(const std::string& text);  ///< For good.

  using Clock = std::chrono::steady_clock;
  std::ostream& out_;
  bool terminal_;
  std::uint64_t total_, done_ = 0, job_steps_ = 0;
  std::size_t jobs_, job_ = 0, width_ = 0;
  std::string name_;
  Clock::time_point start_, job_start_, shown_;
};

}  // namespace zeropp::experiments
