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

With --transport mpi the compared runs are processes, one a rank, and the references virtual ranks of
rank 0: losses, masters and moments must be equal bit for bit, coded, stateful and resumed runs too. It
takes the runs of the matrix that have as many ranks as there are processes. All of it:

  for n in 2 3 4 6 8; do mpirun --oversubscribe -np $n zeropp verify --transport mpi; done
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
  command->add_option("--every", options->every, "only each so-manieth of these runs")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command->add_option("--transport", options->transport, "virtual, or mpi under mpirun")
      ->capture_default_str()
      ->check(CLI::IsMember({"virtual", "mpi"}));
  command->add_option("--timeout", options->timeout_s, "seconds without progress")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 1e6));
  command->add_flag("--json", options->json, "machine-readable result");
  with_plugins(command, action,
               [options] { return verify::verify_command(*options, std::cout, std::cerr); });
}

}  // namespace zeropp::experiments
