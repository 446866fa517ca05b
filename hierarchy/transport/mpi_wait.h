#pragma once

#include <chrono>
#include <string>

#include "hierarchy/transport/mpi.h"
#include "hierarchy/transport/mpi_news.h"

namespace zeropp::hierarchy::mpi_ranks {

/// One wait: polls politely (there may be more ranks than cores) and ends.
class Patience {
 public:
  explicit Patience(const MpiOptions& options, News* news = nullptr)
      : options_(options), news_(news) {}

  /// Lets others run for a moment. TransportError with what() in its text on a timeout or once
  /// options.stop is set, or when another rank has told that it failed: a while later, since
  /// what is waited for may still come, and all ranks may be about to fail alike.
  template <class What>
  void pause(const What& what) {
    const auto waited = Clock::now() - since_;
    if (options_.stop != nullptr && options_.stop->load() != 0) throw_stopped(what());
    if (waited >= options_.timeout) throw_timeout(what());
    if (news_ != nullptr && !news_->heard().empty() && told_long_ago()) throw_told(what());
    give_way(waited);
  }

 private:
  using Clock = std::chrono::steady_clock;
  [[noreturn]] void throw_stopped(const std::string& what) const;
  [[noreturn]] void throw_timeout(const std::string& what) const;
  [[noreturn]] void throw_told(const std::string& what) const;
  bool told_long_ago() const;
  static void give_way(Clock::duration waited);

  const MpiOptions& options_;
  News* news_;
  const Clock::time_point since_ = Clock::now();
};

/// TransportError with MPI's text unless `code` is MPI_SUCCESS.
void check(int code, const char* call);

}  // namespace zeropp::hierarchy::mpi_ranks
