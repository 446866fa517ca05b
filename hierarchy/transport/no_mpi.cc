// In place of mpi*.cc where the build found no MPI.
#include <cstdlib>

#include "hierarchy/transport/mpi.h"
#include "hierarchy/transport/mpi_peer.h"
#include "quant/error.h"

namespace zeropp::hierarchy {
namespace {

[[noreturn]] void refuse() {
  throw UsageError("mpi", "a build with MPI (libopenmpi-dev, ZEROPP_MPI=ON)", "one without it");
}

}  // namespace

bool mpi_available() { return false; }

MpiSession::MpiSession() {
  (void)owner_;
  refuse();
}
MpiSession::~MpiSession() = default;
int MpiSession::rank() const { return 0; }
int MpiSession::size() const { return 1; }
std::uint64_t MpiSession::from_root(std::uint64_t value, std::chrono::milliseconds) const {
  return value;
}
std::vector<int> MpiSession::hosts() const { return {0}; }
LastMpiCall& last_mpi_call() {
  static LastMpiCall last;
  return last;
}
void MpiSession::abort(int code) const { std::exit(code); }

void run_mpi(const Topology&, const MpiOptions&, const std::function<void(Transport&)>&) {
  refuse();
}

void mpi_peer_all_reduce(std::span<const float>, std::span<float>) { refuse(); }
void mpi_peer_all_gather(std::span<const float>, std::span<float>) { refuse(); }

}  // namespace zeropp::hierarchy
