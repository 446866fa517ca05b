#include "hierarchy/transport/mpi_wait.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <thread>

#include "quant/error.h"

namespace zeropp::hierarchy::mpi_ranks {

void Patience::throw_stopped(const std::string& what) const {
  throw TransportError(
      fmt::format("[mpi] stopped by signal {}: {}", options_.stop->load(), what));
}

void Patience::throw_timeout(const std::string& what) const {
  throw TransportError(
      fmt::format("[mpi] timeout: no progress for {} ms; {}", options_.timeout.count(), what));
}

void Patience::throw_told(const std::string& what) const {
  throw TransportError(fmt::format("{}; {}", news_->heard(), what));
}

bool Patience::told_long_ago() const {
  const Clock::duration grace =
      std::min<Clock::duration>(std::chrono::seconds(2), options_.timeout / 2);
  return Clock::now() - std::max(since_, news_->heard_at()) >= grace;
}

void Patience::give_way(Clock::duration waited) {
  using std::chrono::microseconds;
  if (waited < microseconds(20)) return;
  if (waited < microseconds(5000)) return std::this_thread::yield();
  std::this_thread::sleep_for(microseconds(50));
}

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw TransportError(fmt::format("[mpi] {}: {}", call, text.data()));
}

}  // namespace zeropp::hierarchy::mpi_ranks
