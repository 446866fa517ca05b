#pragma once

#include <chrono>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "experiments/run_config.h"
#include "hierarchy/transport/mpi.h"

namespace zeropp::experiments {

/// The processes of one `zeropp run`: this one alone, or one a rank under mpirun. All of them
/// read the config and train; rank 0 decides, writes files and prints.
class Processes {
 public:
  /// Joins the other processes if mpirun started several.
  Processes();

  bool several() const { return session_ && session_->size() > 1; }
  int size() const { return session_ ? session_->size() : 1; }
  int rank() const { return session_ ? session_->rank() : 0; }
  bool root() const { return rank() == 0; }

  /// The overrides of `zeropp run`, with cluster=mpi replaced by the nodes and ranks a node
  /// that MPI sees. UsageError: machines hold different numbers of ranks, or not consecutive
  /// ones.
  std::vector<std::string> with_cluster(std::vector<std::string> overrides) const;

  /// Starts MPI if the config wants it. UsageError: ranks and processes differ in number, or
  /// several processes were started for virtual ranks, or zeropp.cluster.check fails.
  void check(const RunConfig& run);

  /// Runs what every process does alike, or (`only_root`) rank 0 alone, before training. A
  /// UsageError of a lone process goes on; of several, rank 0 prints it on `err` and the result
  /// is false on all: end with 2. Ranks that fail where rank 0 does not end all.
  bool prepare(std::ostream& err, const std::function<void()>& work, bool only_root = false);

  /// Rank 0's answer, everywhere.
  bool decide(const std::function<bool()>& on_root) const;

  /// Ends all processes at once. Others than rank 0 give it a moment to say why.
  [[noreturn]] void end_all(int code) const;

 private:
  std::optional<hierarchy::MpiSession> session_;
  std::chrono::milliseconds timeout_{60'000};
};

/// What zeropp.cluster.check asks of the level named "node" (other topologies have nothing to
/// check); `hosts` as MpiSession::hosts. UsageError names both sides.
void check_hosts(const hierarchy::Topology& topology, const std::string& check,
                 const std::vector<int>& hosts);
/// Ranks a machine, if all machines hold as many and consecutive ones; UsageError otherwise.
int ranks_per_host(const std::vector<int>& hosts);

}  // namespace zeropp::experiments
