#include "experiments/plan.h"

#include <iostream>
#include <memory>

#include "experiments/commands/commands.h"

namespace zeropp::experiments {
namespace {

constexpr const char* kHelp = R"(
Prints for every ZeRO stage and for hpZ the bytes of parameters, gradients and optimizer states a rank
holds and what a step sends on each link class (flat ring), and names the lowest stage that fits.
GB = 1e9, GiB = 2^30.

  zeropp plan --params 7.5e9 --ranks 64 --rank-memory 32GB
  zeropp plan --params 70B --ranks 512 --ranks-per-node 8 --layout 20 --gas 4 --json
)";

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      app.add_subcommand("plan", "memory and traffic of each stage, by formula");
  command->footer(kHelp);
  command->add_option("--params", options->params, "parameters: 7.5e9, 7.5B")->required();
  command->add_option("--ranks", options->ranks, "GPUs")->required();
  command->add_option("--rank-memory", options->rank_memory, "memory of one: 32GB, 80GiB");
  command->add_option("--ranks-per-node", options->ranks_per_node, "8 unless given");
  command
      ->add_option("--layout", options->layout,
                   "bytes a parameter: 16, or 20 with fp32 gradients")
      ->capture_default_str();
  command->add_option("--gas", options->gas, "micro-steps a step")->capture_default_str();
  command->add_flag("--json", options->json, "machine-readable result");
  with_plugins(command, action, [options] { return plan_command(*options, std::cout); });
}

}  // namespace zeropp::experiments
