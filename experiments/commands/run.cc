#include <unistd.h>

#include <iostream>
#include <memory>

#include "experiments/commands/commands.h"
#include "experiments/runner.h"
#include "experiments/sweep/report.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

constexpr const char* kHelp = R"(
Trains every variant of CONFIG with every seed on virtual ranks in this process
(or, with transport=mpi, one process a rank), counts every byte
and writes DIR/summary.json, DIR/summary.md and DIR/<variant>/seed-<s>/{config.json, status.json,
metrics.jsonl, traffic.jsonl}. Run it again and finished jobs are kept, an interrupted one is redone.

A config is a DeepSpeed JSON (train_micro_batch_size_per_gpu, bf16, optimizer, zero_optimization, ...)
plus a "zeropp" object. key=value changes one key for this run, before variants are applied; the value
is JSON or else a string, the key is dotted:

  zeropp run experiments/configs/quickstart.json
  zeropp run experiments/configs/quickstart.json cluster.nodes=3 cluster.ranks_per_node=2
  zeropp run my.json steps=500 seeds=3 data=corpus.txt optimizer.params.lr=3e-4 --out results/runs/mine
  zeropp run my.json zero_optimization.stage=3 codecs.weights=int8:block=2048 algorithm=hierarchical

Keys of "zeropp" (the prefix may be left out):
  cluster.nodes, cluster.ranks_per_node   ranks; or cluster.levels=[{"name","size"},...], innermost first
  cluster=mpi        nodes as MPI sees the machines     cluster.check       contained, exact, off: config against machines
  cluster.preset     named cluster for time_model_s     model.{layers,width,heads,context,tied,...}
  data               kjv or a text file                 seq, steps, seeds   tokens a sample; a count or list
  codecs.weights     qwZ: int8, delta|int4, none        codecs.gradients    qgZ: one spec, one a level, powersgd:rank=4
  secondary          hpZ: none or a level's name        hsdp_group          HSDP: a level's name or a size
  exact.weights, exact.gradients  {one_d, below, patterns}: what travels exact although there is a codec
  algorithm          ring, all_to_all, hierarchical     reduce_at           boundary, micro_step, two_hop
  stage1_all_reduce  stage 1 the 3 Psi way              workers, timeout_s  threads; seconds of silence
  eval.every, eval.windows   validation                 measure.gradient_error, measure.replicas
  transport          virtual, or mpi: one process a rank, mpirun -np 8 zeropp run my.json transport=mpi
All keys with their defaults: zeropp run --help-keys. A list of values makes a sweep, every combination
a variant; the first values are the baseline, or variants of the file are, on the axes they have:
  zeropp run my.json optimizer.params.lr=1e-3,3e-3 'codecs.gradients=choice(int4:block=64,int4:block=128)'
  zeropp run my.json 'gradient_clipping=range(0.5,2,0.5)' seeds=1,2,3 --dry-run
--key=value and --key value work too. Unknown keys are errors. Exit code: 0, 2 for a mistake in what you asked, 1 for the rest.
)";

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "train the variants of a config, side by side");
  command->footer(kHelp);
  auto help_keys = std::make_shared<bool>(false);
  command->add_option("CONFIG", options->config, "JSON file");
  command->add_option("OVERRIDES", options->overrides, "key=value or --key=value, see below");
  command->add_option("--out", options->out, "output folder (results/runs/<config>-<hash>)")
      ->type_name("DIR");
  auto transport = std::make_shared<std::string>();
  command->add_option("--transport", *transport, "virtual or mpi, as the key transport")
      ->type_name("NAME");
  command->add_flag("--json", options->json, "print summary.json instead of the table");
  command->add_flag("--dry-run", options->dry_run,
                    "list the jobs with predicted bytes and memory, and stop");
  command->add_flag("--fresh", options->fresh, "do finished and interrupted jobs again");
  command->add_flag("--any-memory", options->any_memory,
                    "begin also what the memory here cannot hold");
  command->add_flag("--help-keys", *help_keys,
                    "every key of a config, its default and meaning");
  command->allow_extras();
  with_plugins(command, action, [options, transport, command, help_keys] {
    if (*help_keys) {
      std::cout << keys_text() << std::flush;
      return 0;
    }
    if (options->config.empty()) {
      throw UsageError("command line", "a CONFIG to run (see --help)", "none");
    }
    if (!transport->empty()) options->overrides.push_back("transport=" + *transport);
    for (const std::string& extra : command->remaining()) options->overrides.push_back(extra);
    options->terminal = ::isatty(STDERR_FILENO) == 1;
    return run_command(*options, std::cout, std::cerr);
  });
}

}  // namespace zeropp::experiments
