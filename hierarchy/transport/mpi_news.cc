#include "hierarchy/transport/mpi_news.h"

#include <algorithm>

#include "hierarchy/transport/mpi_wait.h"

namespace zeropp::hierarchy::mpi_ranks {

News::News(MPI_Comm comm) : comm_(comm) {
  MPI_Comm_rank(comm, &rank_);
  MPI_Comm_size(comm, &size_);
}

void News::tell(const std::string& text) noexcept {
  if (told_) return;
  told_ = true;
  std::copy_n(text.begin(), std::min(text.size(), kBytes - 1), note_.begin());
  try {
    sends_.reserve(static_cast<std::size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      sends_.push_back(MPI_REQUEST_NULL);
      MPI_Isend(note_.data(), kBytes, MPI_CHAR, peer, 0, comm_, &sends_.back());
    }
  } catch (...) {  // Others run into their timeouts.
  }
}

const std::string& News::heard() {
  const auto now = std::chrono::steady_clock::now();
  if (!heard_.empty() || now - asked_at_ < std::chrono::milliseconds(1)) return heard_;
  asked_at_ = now;
  receive();
  return heard_;
}

void News::receive() {
  int there = 0;
  check(MPI_Iprobe(MPI_ANY_SOURCE, 0, comm_, &there, MPI_STATUS_IGNORE), "MPI_Iprobe");
  if (there == 0) return;
  Note note{};
  check(MPI_Recv(note.data(), kBytes, MPI_CHAR, MPI_ANY_SOURCE, 0, comm_, MPI_STATUS_IGNORE),
        "MPI_Recv");
  note.back() = 0;
  ++received_;
  if (!heard_.empty()) return;
  heard_ = note.data();
  heard_at_ = std::chrono::steady_clock::now();
}

bool News::settled() {
  if (received_ < size_ - 1) receive();
  int left = 0;
  check(MPI_Testall(static_cast<int>(sends_.size()), sends_.data(), &left, MPI_STATUSES_IGNORE),
        "MPI_Testall");
  return left != 0 && received_ == size_ - 1;
}

}  // namespace zeropp::hierarchy::mpi_ranks
