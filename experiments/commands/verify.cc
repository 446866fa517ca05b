#include "experiments/verify/verify.h"

#include <iostream>
#include <memory>

#include "experiments/commands/commands.h"

namespace zeropp::experiments {
namespace {

constexpr const char* kHelp = R"(
Trains toy models and compares runs that must agree bit for bit: stages 0, 1, 2, 3 and hpZ with each
other (with the hierarchical algorithm HSDP and MiCS too), and every coded run with itself under other
bucket sizes, prefetch and workers. By default a matrix that covers every pair of settings; --full runs
all of them. The codecs of a plug-in take part. Where something differs it names step, tensor and element. Exit code 1 if any law breaks.

  zeropp verify
  zeropp verify --filter zero++
  zeropp verify --full --json
)";

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto options = std::make_shared<verify::VerifyOptions>();
  CLI::App* command = app.add_subcommand("verify", "prove the exactness laws on this machine");
  command->footer(kHelp);
  command->add_flag("--full", options->full, "every combination instead of every pair");
  command->add_flag("--list", options->list, "only print what would run");
  command->add_option("--filter", options->filter, "only runs whose label contains this")
      ->type_name("TEXT");
  command->add_option("--steps", options->steps, "optimizer steps of a run")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_flag("--json", options->json, "machine-readable result");
  with_plugins(command, action,
               [options] { return verify::verify_command(*options, std::cout, std::cerr); });
}

}  // namespace zeropp::experiments
