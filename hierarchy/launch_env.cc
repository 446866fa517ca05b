#include "hierarchy/launch_env.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "quant/error.h"

namespace zeropp::hierarchy {
namespace {

using Launcher = LaunchEnv::Launcher;

struct Names {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* other_size;  ///< Where `size` is not set.
  const char* local_rank;
};

constexpr Names kNames[] = {
    {Launcher::kMpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr,
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {Launcher::kTorchrun, "RANK", "WORLD_SIZE", nullptr, "LOCAL_RANK"},
    {Launcher::kSlurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID"},
};

int number(const char* variable, std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size();
  if (good && value >= least && value <= most) return value;
  throw UsageError("launch",
                   fmt::format("{} to be a number in [{}, {}]", variable, least, most),
                   fmt::format("'{}'", text));
}

}  // namespace

const char* name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kMpirun:
      return "mpirun";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kSlurm:
      return "srun";
    case Launcher::kNone:
      break;
  }
  return "none";
}

LaunchEnv read_launch_env(const Getenv& getenv) {
  constexpr int most = std::numeric_limits<int>::max();
  LaunchEnv env;
  for (const Names& names : kNames) {
    const char* rank = getenv(names.rank);
    const char* size_name = names.size;
    if (getenv(size_name) == nullptr && names.other_size != nullptr) {
      size_name = names.other_size;
    }
    const char* size = getenv(size_name);
    if (rank == nullptr || size == nullptr) continue;
    env.launcher = names.launcher;
    env.size = number(size_name, size, 1, most);
    env.rank = number(names.rank, rank, 0, env.size - 1);
    if (const char* local = getenv(names.local_rank)) {
      env.local_rank = number(names.local_rank, local, 0, most);
    }
    break;
  }
  if (const char* address = getenv("MASTER_ADDR")) env.master_addr = address;
  if (const char* port = getenv("MASTER_PORT")) {
    env.master_port = number("MASTER_PORT", port, 1, 65535);
  }
  return env;
}

LaunchEnv read_launch_env() {
  return read_launch_env([](const char* variable) { return std::getenv(variable); });
}

}  // namespace zeropp::hierarchy
