#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

namespace zeropp::hierarchy::mpi_ranks {

/// How ranks tell each other that they failed, so that nobody has to run into a timeout: a note
/// of fixed size to everyone, on a communicator of its own. Waits look for notes now and then.
class News {
 public:
  explicit News(MPI_Comm comm);

  /// Sends `text` to all other ranks, once. Does not wait and does not throw: what failed
  /// counts.
  void tell(const std::string& text) noexcept;
  /// The first note of another rank, or "". Asks MPI at most once a millisecond.
  const std::string& heard();
  /// When the note in heard() came.
  std::chrono::steady_clock::time_point heard_at() const { return heard_at_; }
  /// Receives notes until all other ranks have told one and own ones have left, if tell() was
  /// called: after a failure of all ranks nothing stays in flight. `pause` waits or throws.
  template <class Pause>
  void settle(const Pause& pause) {
    while (told_ && !settled()) pause();
  }

 private:
  static constexpr std::size_t kBytes = 1024;  ///< Small enough for MPI to send at once.
  using Note = std::array<char, kBytes>;
  bool settled();
  void receive();

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1, received_ = 0;
  bool told_ = false;
  Note note_{};
  std::vector<MPI_Request> sends_;
  std::string heard_;
  std::chrono::steady_clock::time_point heard_at_, asked_at_;
};

}  // namespace zeropp::hierarchy::mpi_ranks
