#include "hierarchy/transport/mpi.h"

#include <fmt/format.h>
#include <mpi.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "hierarchy/transport/mpi_endpoint.h"
#include "hierarchy/transport/mpi_news.h"
#include "hierarchy/transport/mpi_wait.h"
#include "quant/error.h"

namespace zeropp::hierarchy {
namespace {

using mpi_ranks::check;
using mpi_ranks::Endpoint;
using mpi_ranks::News;
using mpi_ranks::Patience;

/// A run ended with messages in flight.
bool broken = false;

bool initialized() {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes != 0;
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

template <class What>
void wait_for(MPI_Request& request, const MpiOptions& options, const What& what) {
  Patience patience(options);
  for (;;) {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return;
    patience.pause(what);
  }
}

void check_options(const Topology& topology, const MpiOptions& options) {
  if (!initialized()) throw UsageError("mpi", "an MpiSession", "none");
  if (topology.ranks() != world_size()) {
    throw UsageError("mpi",
                     fmt::format("{} processes, one a rank of the topology (mpirun -np {} ...)",
                                 topology.ranks(), topology.ranks()),
                     std::to_string(world_size()));
  }
  if (options.timeout.count() <= 0) {
    throw UsageError("mpi", "timeout > 0 ms", std::to_string(options.timeout.count()));
  }
  constexpr std::size_t most = (std::size_t{1} << 31) - 1;
  if (options.piece_bytes == 0 || options.piece_bytes > most) {
    throw UsageError("mpi", fmt::format("piece_bytes in [1, {}]", most),
                     std::to_string(options.piece_bytes));
  }
}

/// How a rank's body ended.
enum Ending : int { kEnded = 0, kUsage = 1, kOther = 2 };

struct BodyEnd {
  Ending ending = kEnded;
  std::exception_ptr error;
  std::string text;  ///< "" or what the error says.
};

std::string failed_text(const Endpoint& endpoint, const std::string& text) {
  return fmt::format("[mpi] rank {} failed {}: {}", endpoint.rank(), endpoint.where(), text);
}

/// Runs the body; other ranks hear of its failure.
BodyEnd run_body(Endpoint& endpoint, News& news, const std::function<void(Transport&)>& body) {
  const auto caught = [&](Ending ending, const char* text) {
    news.tell(failed_text(endpoint, text));
    return BodyEnd{.ending = ending, .error = std::current_exception(), .text = text};
  };
  try {
    body(endpoint);
  } catch (const TransportError& e) {
    const std::string text = e.what();
    const bool known = text.starts_with("[mpi]");
    news.tell(known ? text : failed_text(endpoint, text));
    if (known) throw;
    throw TransportError(failed_text(endpoint, text));
  } catch (const UsageError& e) {
    return caught(kUsage, e.what());
  } catch (const std::exception& e) {
    return caught(kOther, e.what());
  } catch (...) {
    return caught(kOther, "an exception that is no std::exception");
  }
  return {};
}

/// All ranks tell how they ended; TransportError unless all ended alike.
void agree(const Endpoint& endpoint, const BodyEnd& end, const MpiOptions& options,
           MPI_Comm comm, News& news) {
  const std::string mine =
      end.ending == kEnded
          ? fmt::format("rank {} has ended", endpoint.rank())
          : fmt::format("rank {} failed {}: {}", endpoint.rank(), endpoint.where(), end.text);
  if (endpoint.failed()) throw TransportError("[mpi] " + mine);
  const int send[2] = {end.ending, -end.ending};
  int least[2] = {};
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallreduce(send, least, 2, MPI_INT, MPI_MIN, comm, &request), "MPI_Iallreduce");
  const auto waits = [&] { return fmt::format("{} and waits for the others to end", mine); };
  // Others may be about to fail alike, or may have given up because of this rank.
  const std::string prefix = fmt::format("[mpi] rank {} failed", endpoint.rank());
  const auto alone = [&] {
    const std::string& note = news.heard();
    return end.ending != kEnded && !note.empty() &&
           (note.starts_with(prefix) || note.find(end.text) == std::string::npos);
  };
  Patience patience(options, end.ending == kEnded ? &news : nullptr);
  for (int done = 0;;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) break;
    if (alone()) throw TransportError(fmt::format("[mpi] {}; the others gave up", mine));
    patience.pause(waits);
  }
  if (least[0] == -least[1]) {
    Patience settling(options);
    news.settle([&] { settling.pause(waits); });
    return;
  }
  throw TransportError(fmt::format("[mpi] {}; not all ranks ended in the same way", mine));
}

/// A communicator of all ranks that nothing else uses.
MPI_Comm own_comm(const MpiOptions& options) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request), "MPI_Comm_idup");
  wait_for(request, options,
           [] { return fmt::format("rank {} waits for the others to begin", world_rank()); });
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return comm;
}

}  // namespace

bool mpi_available() { return true; }

MpiSession::MpiSession() {
  if (initialized()) return;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) throw TransportError("[mpi] no MPI_THREAD_FUNNELED");
  owner_ = true;
}

MpiSession::~MpiSession() {
  if (owner_ && !broken) MPI_Finalize();
}

int MpiSession::rank() const { return world_rank(); }
int MpiSession::size() const { return world_size(); }

std::vector<int> MpiSession::hosts() const {
  int node = 0;
  if (const char* text = std::getenv("ZEROPP_MPI_NODE")) {
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), node);
    if (error != std::errc() || *end != 0 || node < 0) {
      throw UsageError("mpi", "ZEROPP_MPI_NODE to be a number >= 0", text);
    }
  }
  MPI_Comm machine = MPI_COMM_NULL, part = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL,
                            &machine),
        "MPI_Comm_split_type");
  check(MPI_Comm_split(machine, node, rank(), &part), "MPI_Comm_split");
  int lowest = rank();
  check(MPI_Bcast(&lowest, 1, MPI_INT, 0, part), "MPI_Bcast");
  std::vector<int> all(static_cast<std::size_t>(size()));
  check(MPI_Allgather(&lowest, 1, MPI_INT, all.data(), 1, MPI_INT, MPI_COMM_WORLD),
        "MPI_Allgather");
  MPI_Comm_free(&part);
  MPI_Comm_free(&machine);
  return all;
}

LastMpiCall& last_mpi_call() {
  static LastMpiCall last;
  return last;
}

std::uint64_t MpiSession::from_root(std::uint64_t value,
                                    std::chrono::milliseconds timeout) const {
  const MpiOptions options{.timeout = timeout};
  MPI_Request request = MPI_REQUEST_NULL;
  try {
    check(MPI_Ibcast(&value, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD, &request), "MPI_Ibcast");
    wait_for(request, options,
             [&] { return fmt::format("rank {} waits for word from rank 0", rank()); });
  } catch (...) {
    broken = true;
    throw;
  }
  return value;
}

void MpiSession::abort(int code) const {
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

void run_mpi(const Topology& topology, const MpiOptions& options,
             const std::function<void(Transport&)>& body) {
  check_options(topology, options);
  BodyEnd end;
  try {
    // Three: a rank that ends early must not have its word taken for another's barrier.
    MPI_Comm messages = own_comm(options);
    MPI_Comm endings = own_comm(options);
    MPI_Comm notes = own_comm(options);
    // Not destroyed after a failure: its notes may be on their way.
    auto news = std::make_unique<News>(notes);
    try {
      Endpoint endpoint(topology, options, messages, *news, world_rank());
      end = run_body(endpoint, *news, body);
      agree(endpoint, end, options, endings, *news);
    } catch (...) {
      static_cast<void>(news.release());
      throw;
    }
    check(MPI_Comm_free(&messages), "MPI_Comm_free");
    check(MPI_Comm_free(&endings), "MPI_Comm_free");
    check(MPI_Comm_free(&notes), "MPI_Comm_free");
  } catch (const TransportError&) {
    broken = true;
    throw;
  }
  if (end.error) std::rethrow_exception(end.error);
}

}  // namespace zeropp::hierarchy
