#include "experiments/verdict/compare.h"

#include <iostream>
#include <memory>

#include "experiments/commands/commands.h"

namespace zeropp::experiments {
namespace {

constexpr const char* kHelp = R"(
Is B's validation loss as good as A's? Seeds are pairs (same data order, same initial weights), and
only seeds are samples: one seed gives no verdict, however many steps it has.

  EQUIVALENT     the whole 90 % interval of the mean difference lies inside the margin (TOST)
  NON-INFERIOR   its upper end does
  WORSE          its lower end lies beyond the margin
  INCONCLUSIVE   neither; the number of seeds that would do is given
  DIVERGED       a seed failed, or ended without a finite loss: such seeds are never left out

Claims about several variants are corrected for their number (Holm). Margin and alpha come from the
config's zeropp.compare, decided before the run; options here are for looking, not for claims.

  zeropp compare results/runs/quickstart-*                  all variants against the baseline
  zeropp compare DIR:zero3 DIR:qgz-int4 --json              two of them
  zeropp compare OLD NEW                                    variants of the same name
)";

}  // namespace

void add_compare(CLI::App& app, Action& action) {
  auto o = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand("compare", "verdicts on losses, seed by seed");
  command->footer(kHelp);
  command->add_option("A", o->a, "results folder, or FOLDER:VARIANT")->required();
  command->add_option("B", o->b, "what is compared with it; all other variants of A");
  command->add_option("--margin", o->margin, "nats that do not matter; the config's");
  command->add_option("--alpha", o->alpha, "error rate of a verdict; the config's");
  command->add_flag("--json", o->json, "machine-readable result");
  with_plugins(command, action, [o] { return compare_command(*o, std::cout); });
}

}  // namespace zeropp::experiments
