#include "experiments/processes.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <string>
#include <thread>

#include "hierarchy/launch_env.h"
#include "quant/error.h"

namespace zeropp::experiments {

Processes::Processes() {
  const hierarchy::LaunchEnv env = hierarchy::read_launch_env();
  const bool mpirun = env.launcher == hierarchy::LaunchEnv::Launcher::kMpirun;
  if (mpirun && env.size > 1 && hierarchy::mpi_available()) session_.emplace();
}

void Processes::check(const RunConfig& run) {
  timeout_ = std::chrono::milliseconds(static_cast<std::int64_t>(run.timeout_s * 1000));
  if (run.transport != "mpi") {
    if (!several()) return;
    throw UsageError("zeropp.transport",
                     fmt::format("mpi for {} processes under mpirun", session_->size()),
                     run.transport);
  }
  if (!session_) session_.emplace();
  if (run.topology.ranks() == session_->size()) return;
  throw UsageError("zeropp.cluster",
                   fmt::format("as many ranks as processes, {} (or mpirun -np {})",
                               session_->size(), run.topology.ranks()),
                   fmt::format("{} ranks", run.topology.ranks()));
}

bool Processes::prepare(std::ostream& err, const std::function<void()>& work, bool only_root) {
  std::string error;
  try {
    if (root() || !only_root) work();
  } catch (const UsageError& e) {
    if (!several()) throw;
    error = e.what();
  }
  // Before the others know and end: mpirun ends all when one has.
  if (root() && !error.empty()) err << fmt::format("zeropp: {}\n", error) << std::flush;
  if (decide([&] { return !error.empty(); })) return false;
  if (error.empty()) return true;
  err << fmt::format("zeropp: rank {}: {}\n", rank(), error) << std::flush;
  end_all(2);
}

bool Processes::decide(const std::function<bool()>& on_root) const {
  const bool mine = root() && on_root();
  return several() ? session_->from_root(mine ? 1 : 0, timeout_) != 0 : mine;
}

void Processes::end_all(int code) const {
  if (!session_) std::exit(code);
  if (!root()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  session_->abort(code);
}

}  // namespace zeropp::experiments
