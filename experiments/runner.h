#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace zeropp::experiments {

struct RunOptions {
  std::string config;                    ///< Path.
  std::vector<std::string> overrides{};  ///< "key=value".
  std::string out;                       ///< Empty: results/runs/<config>-<hash>.
  bool json = false;                     ///< summary.json on `out` instead of the table.
  bool dry_run = false;                  ///< List the jobs and what they will take.
  bool fresh = false;                    ///< Do finished and interrupted jobs again.
  bool any_memory = false;               ///< Begin also what cannot fit.
  bool terminal = false;                 ///< `err` is a terminal.
};

/// `zeropp run`: every variant with every seed, then the summary. Finished jobs are kept.
/// Returns the exit code: 0, 1 (a job failed), 2 (jobs failed by usage alone), 128 + signal.
/// Throws UsageError before anything runs.
int run_command(const RunOptions& options, std::ostream& out, std::ostream& err);

/// "results/runs/quickstart-1a2b3c4d".
std::string default_out(const std::string& stem, const std::string& hash);

}  // namespace zeropp::experiments
