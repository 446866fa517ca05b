#include "hierarchy/transport/mpi_peer.h"

#include <mpi.h>

#include <limits>
#include <string>

#include "hierarchy/transport/mpi_wait.h"
#include "quant/error.h"

namespace zeropp::hierarchy {
namespace {

int count_of(std::size_t n) {
  if (n > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw UsageError("mpi peer", "fewer than 2^31 elements, which MPI can count",
                     std::to_string(n));
  }
  return static_cast<int>(n);
}

}  // namespace

void mpi_peer_all_reduce(std::span<const float> in, std::span<float> out) {
  mpi_ranks::check(MPI_Allreduce(in.data(), out.data(), count_of(in.size()), MPI_FLOAT, MPI_SUM,
                                 MPI_COMM_WORLD),
                   "MPI_Allreduce");
}

void mpi_peer_all_gather(std::span<const float> in, std::span<float> out) {
  const int n = count_of(in.size());
  mpi_ranks::check(
      MPI_Allgather(in.data(), n, MPI_FLOAT, out.data(), n, MPI_FLOAT, MPI_COMM_WORLD),
      "MPI_Allgather");
}

}  // namespace zeropp::hierarchy
