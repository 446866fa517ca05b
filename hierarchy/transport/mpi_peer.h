#pragma once

#include <span>

namespace zeropp::hierarchy {

/// The MPI library's own collectives over all processes, to be measured beside ours. Inside a
/// run_mpi body, all ranks alike; nothing is booked. TransportError with MPI's message;
/// UsageError without MPI.
void mpi_peer_all_reduce(std::span<const float> in, std::span<float> out);  ///< The sum.
void mpi_peer_all_gather(std::span<const float> in, std::span<float> out);  ///< N times in.

}  // namespace zeropp::hierarchy
