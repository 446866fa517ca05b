#pragma once

#include <chrono>
#include <string>

#include "hierarchy/transport/mpi.h"

namespace zeropp::hierarchy::mpi_ranks {

/// One wait: polls politely (there may be more ranks than cores) and ends.
class Patience {
 public:
  explicit Patience(const MpiOptions& options) : options_(options) {}

  /// Lets others run for a moment. TransportError with what() in its text on a timeout or once
  /// options.stop is set.
  template <class What>
  void pause(const What& what) {
    const auto waited = Clock::now() - since_;
    if (options_.stop != nullptr && options_.stop->load() != 0) throw_stopped(what());
    if (waited >= options_.timeout) throw_timeout(what());
    give_way(waited);
  }

 private:
  using Clock = std::chrono::steady_clock;
  [[noreturn]] void throw_stopped(const std::string& what) const;
  [[noreturn]] void throw_timeout(const std::string& what) const;
  static void give_way(Clock::duration waited);

  const MpiOptions& options_;
  const Clock::time_point since_ = Clock::now();
};

/// TransportError with MPI's text unless `code` is MPI_SUCCESS.
void check(int code, const char* call);

}  // namespace zeropp::hierarchy::mpi_ranks
