#include "experiments/progress.h"

#include <fmt/format.h>

#include <ostream>

#include "experiments/text_table.h"

namespace zeropp::experiments {
namespace {

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

Progress::Progress(std::ostream& out, bool terminal, std::uint64_t total_steps,
                   std::size_t jobs)
    : out_(out), terminal_(terminal), total_(total_steps), jobs_(jobs), start_(Clock::now()) {}

void Progress::skip_job(const std::string& name, std::uint64_t steps) {
  ++job_;
  total_ -= steps;
  line(fmt::format("[{}/{}] {}: already done", job_, jobs_, name));
}

void Progress::begin_job(const std::string& name, std::uint64_t steps) {
  ++job_;
  name_ = name;
  job_steps_ = steps;
  job_start_ = Clock::now();
  shown_ = {};
  if (terminal_) show(fmt::format("[{}/{}] {}", job_, jobs_, name_));
}

void Progress::step(std::uint64_t step, double loss) {
  ++done_;
  if (!terminal_) return;
  const auto now = Clock::now();
  if (seconds(now - shown_) < 0.1 && step != job_steps_) return;
  shown_ = now;
  const double left = seconds(now - start_) / static_cast<double>(done_) *
                      static_cast<double>(total_ > done_ ? total_ - done_ : 0);
  show(fmt::format("[{}/{}] {}  step {}/{}  loss {:.4f}  {} left", job_, jobs_, name_, step,
                   job_steps_, loss, human_seconds(left)));
}

void Progress::end_job(const std::string& result) {
  line(fmt::format("[{}/{}] {}: {} ({})", job_, jobs_, name_, result,
                   human_seconds(seconds(Clock::now() - job_start_))));
}

void Progress::show(const std::string& text) {
  out_ << '\r' << text << std::string(width_ > text.size() ? width_ - text.size() : 0, ' ')
       << std::flush;
  width_ = text.size();
}

void Progress::line(const std::string& text) {
  if (terminal_) {
    show(text);
    width_ = 0;
  } else {
    out_ << text;
  }
  out_ << '\n' << std::flush;
}

}  // namespace zeropp::experiments
