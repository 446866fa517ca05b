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
  if (run.topology.ranks() == session_->size()) {
    const std::vector<int> hosts = session_->hosts();
    return check_hosts(run.topology, run.cluster_check, hosts);
  }
  throw UsageError("zeropp.cluster",
                   fmt::format("as many ranks as processes, {} (or mpirun -np {})",
                               session_->size(), run.topology.ranks()),
                   fmt::format("{} ranks", run.topology.ranks()));
}

std::vector<std::string> Processes::with_cluster(std::vector<std::string> overrides) const {
  std::vector<std::string> expanded;
  for (std::string& text : overrides) {
    if (text != "cluster=mpi" && text != "zeropp.cluster=mpi") {
      expanded.push_back(std::move(text));
      continue;
    }
    if (!session_) throw UsageError("cluster=mpi", "processes under mpirun", "none");
    const int each = ranks_per_host(session_->hosts());
    expanded.push_back(fmt::format("zeropp.cluster.nodes={}", session_->size() / each));
    expanded.push_back(fmt::format("zeropp.cluster.ranks_per_node={}", each));
  }
  return expanded;
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

void check_hosts(const hierarchy::Topology& topology, const std::string& check,
                 const std::vector<int>& hosts) {
  int size = 0;  // Of the level named node.
  for (int i = 0; i < topology.levels(); ++i) {
    if (topology.level(i).name == "node") size = topology.group_size(i);
  }
  if (size == 0 || check == "off") return;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const std::size_t first =
        r / static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
    if (hosts[r] != hosts[first]) {
      throw UsageError("zeropp.cluster",
                       fmt::format("the {} ranks of each node on one machine (or "
                                   "cluster.check=off)",
                                   size),
                       fmt::format("rank {} on the machine of rank {}, rank {} on that of rank "
                                   "{} (MPI_Comm_split_type)",
                                   first, hosts[first], r, hosts[r]));
    }
    if (check == "exact" && hosts[first] < static_cast<int>(first)) {
      throw UsageError("zeropp.cluster", "one node a machine (cluster.check=exact)",
                       fmt::format("the nodes of ranks {} and {} on one (MPI_Comm_split_type)",
                                   hosts[first], first));
    }
  }
}

int ranks_per_host(const std::vector<int>& hosts) {
  std::size_t each = 0;
  while (each < hosts.size() && hosts[each] == hosts[0]) ++each;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (hosts.size() % each == 0 && hosts[r] == static_cast<int>(r / each * each)) continue;
    throw UsageError("cluster=mpi", "machines with equally many, consecutive ranks",
                     fmt::format("rank {} on the machine of rank {}", r, hosts[r]));
  }
  return static_cast<int>(each);
}

}  // namespace zeropp::experiments
