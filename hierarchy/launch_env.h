#pragma once

#include <functional>
#include <string>

namespace zeropp::hierarchy {

/// Who started this process as one of several, and which one it is, from the variables that the
/// launcher sets. Looked for in this order; the first whose rank and size are both there
/// counts:
///
///   launcher   rank                   size                        rank on its node
///   mpirun     OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE        OMPI_COMM_WORLD_LOCAL_RANK
///   torchrun   RANK                   WORLD_SIZE                  LOCAL_RANK
///   srun       SLURM_PROCID           SLURM_STEP_NUM_TASKS, else  SLURM_LOCALID
///                                     SLURM_NTASKS
///
/// mpirun comes first: inside a Slurm job its processes have both. MASTER_ADDR and MASTER_PORT
/// are read for every launcher (torchrun sets them).
struct LaunchEnv {
  enum class Launcher { kNone, kMpirun, kTorchrun, kSlurm };
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;       ///< 0 where the launcher does not say.
  std::string master_addr;  ///< Empty where nobody says.
  int master_port = 0;      ///< 0 where nobody says.

  /// One of several. A batch script of Slurm itself looks like rank 0 of its job: that a
  /// process was launched does not mean that its peers are there.
  bool launched() const { return launcher != Launcher::kNone; }
};

/// "mpirun", "torchrun", "srun", "none".
const char* name(LaunchEnv::Launcher launcher);

/// A variable's value, or null.
using Getenv = std::function<const char*(const char*)>;

/// UsageError: a variable that is no number in its range (0 <= rank < size, 0 <= local rank).
LaunchEnv read_launch_env(const Getenv& getenv);
LaunchEnv read_launch_env();  ///< From the process' environment.

}  // namespace zeropp::hierarchy
