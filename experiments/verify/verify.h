#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "experiments/verify/matrix.h"
#include "experiments/verify/trace.h"

namespace zeropp::experiments::verify {

struct VerifyOptions {
  bool full = false;  ///< Every scheme x topology x accumulation x algorithm x head.
  bool json = false;
  bool list = false;  ///< Only print the cells.
  int steps = 3;
  std::string filter;  ///< Only cells whose label contains this.
  int every = 1;       ///< Only each so-manieth of those that are left.
  /// "mpi": the compared runs are processes, one a rank, of cells with as many ranks; each
  /// against its family's reference on virtual ranks of rank 0.
  std::string transport = "virtual";
  double timeout_s = 60;  ///< Of silence.
  /// Tests only: makes the compared run (not the reference) faulty.
  zero::Sabotage sabotage = zero::Sabotage::kNone;
};

struct CellResult {
  Cell cell;
  std::string difference;  ///< Empty: equal bit for bit.
};

/// Runs each cell and compares it with its family's reference (on rank 0, where ranks are
/// processes; a run that fails there ends it with TransportError). `progress(done, total)`.
std::vector<CellResult> verify_cells(
    const std::vector<Cell>& cells, const VerifyOptions& options,
    const std::function<void(std::size_t, std::size_t)>& progress, const RankPlace& place = {});

/// `zeropp verify`. Returns the exit code: 0 if every law holds, 1 if not.
int verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& err);

}  // namespace zeropp::experiments::verify
