// What launchers tell their processes.
#include "hierarchy/launch_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "quant/error.h"

namespace zeropp::hierarchy {
namespace {

using Launcher = LaunchEnv::Launcher;
using Variables = std::map<std::string, std::string>;

LaunchEnv read(const Variables& variables) {
  return read_launch_env([&](const char* variable) {
    const auto at = variables.find(variable);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "5"},
                           {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "2"},
                             {"MASTER_ADDR", "node-17"},
                             {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_PROCID", "6"}, {"SLURM_NTASKS", "7"}, {"SLURM_LOCALID", "3"}};

void expect(const LaunchEnv& env, Launcher launcher, int rank, int size, int local_rank) {
  EXPECT_EQ(name(env.launcher), std::string(name(launcher)));
  EXPECT_EQ(env.rank, rank);
  EXPECT_EQ(env.size, size);
  EXPECT_EQ(env.local_rank, local_rank);
}

TEST(LaunchEnv, NobodyLaunchedThisProcess) {
  const LaunchEnv env = read({});
  expect(env, Launcher::kNone, 0, 1, 0);
  EXPECT_FALSE(env.launched());
  EXPECT_EQ(env.master_addr, "");
  EXPECT_EQ(env.master_port, 0);
}

TEST(LaunchEnv, EachLauncher) {
  expect(read(kMpirun), Launcher::kMpirun, 5, 8, 1);
  expect(read(kTorchrun), Launcher::kTorchrun, 3, 4, 2);
  expect(read(kSlurm), Launcher::kSlurm, 6, 7, 3);
  EXPECT_TRUE(read(kSlurm).launched());
  EXPECT_EQ(read(kTorchrun).master_addr, "node-17");
  EXPECT_EQ(read(kTorchrun).master_port, 29500);
}

TEST(LaunchEnv, MpirunComesFirstThenTorchrun) {
  Variables all = kMpirun;
  all.insert(kTorchrun.begin(), kTorchrun.end());
  all.insert(kSlurm.begin(), kSlurm.end());
  expect(read(all), Launcher::kMpirun, 5, 8, 1);
  for (const auto& [variable, value] : kMpirun) all.erase(variable);
  expect(read(all), Launcher::kTorchrun, 3, 4, 2);
}

TEST(LaunchEnv, AStepOfAJobHasItsOwnSize) {
  Variables step = kSlurm;
  step["SLURM_STEP_NUM_TASKS"] = "16";
  step["SLURM_PROCID"] = "15";
  expect(read(step), Launcher::kSlurm, 15, 16, 3);
}

TEST(LaunchEnv, HalfAPairSaysNothing) {
  expect(read({{"RANK", "3"}}), Launcher::kNone, 0, 1, 0);
  expect(read({{"SLURM_NTASKS", "8"}}), Launcher::kNone, 0, 1, 0);  // salloc's shell.
  Variables half = kSlurm;
  half["OMPI_COMM_WORLD_SIZE"] = "2";
  expect(read(half), Launcher::kSlurm, 6, 7, 3);
}

TEST(LaunchEnv, LocalRankMayBeAbsent) {
  expect(read({{"RANK", "3"}, {"WORLD_SIZE", "4"}}), Launcher::kTorchrun, 3, 4, 0);
}

TEST(LaunchEnv, NonsenseIsRefusedByName) {
  const auto refused = [](Variables variables, const std::string& variable,
                          const std::string& value) {
    variables[variable] = value;
    try {
      read(variables);
      ADD_FAILURE() << variable << "=" << value << " was taken";
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(variable));
      EXPECT_THAT(e.what(), testing::HasSubstr("'" + value + "'"));
    }
  };
  for (const char* value : {"", "x", "8", "-1", "1 ", "1.5", "99999999999"}) {
    refused(kMpirun, "OMPI_COMM_WORLD_RANK", value);
  }
  refused(kTorchrun, "WORLD_SIZE", "0");
  refused(kTorchrun, "WORLD_SIZE", "four");
  refused(kTorchrun, "LOCAL_RANK", "-1");
  refused(kTorchrun, "MASTER_PORT", "65536");
  refused(kSlurm, "SLURM_NTASKS", "six");
}

}  // namespace
}  // namespace zeropp::hierarchy
