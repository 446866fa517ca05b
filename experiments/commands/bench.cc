#include "experiments/bench/bench.h"

#include <unistd.h>

#include <iostream>
#include <memory>

#include "experiments/commands/commands.h"

namespace zeropp::experiments {
namespace {

constexpr const char* kHelp = R"(
Times collectives as nccl-tests does (its columns, its algbw and busbw), and adds the bytes that all
ranks sent, those out of the busiest node, encode and decode time, and the error. #wrong counts
elements that are not the known answer; N/A for codecs that lose something.

  zeropp bench
  zeropp bench --collective all_reduce --codec exact --codec int8,int4 -b 1M -e 64M -f 2
  zeropp bench --collective all_gather --codec exact --codec int8:block=2048 --ranks 64
  mpirun -np 4 zeropp bench --transport mpi --collective all_reduce   # OpenMPI's own beside it

Sizes: 1000, 64K, 16M, 1G in powers of 1024; of an all-gather its output, of a reduce-scatter its
input, as nccl-tests counts them. Virtual ranks share this machine's cores: their times compare
algorithms and codecs here, not clusters; `zeropp plan` models those.
)";

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "time the collectives, as nccl-tests does");
  command->footer(kHelp);
  const auto repeatable = [&](const char* name, std::vector<std::string>& to, const char* help,
                              const char* type) {
    command->add_option(name, to, help)->type_name(type)->allow_extra_args(false);
  };
  const auto plain = [&](const char* name, auto& to, const char* help) {
    return command->add_option(name, to, help)->capture_default_str();
  };
  repeatable("--collective", o->collectives,
             "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier; all",
             "NAME");
  repeatable("--algorithm", o->algorithms, "ring, all_to_all, hierarchical; all", "NAME");
  repeatable("--codec", o->codecs, "spec for every level; exact", "SPEC");
  plain("-b,--minbytes", o->min_bytes, "smallest size");
  plain("-e,--maxbytes", o->max_bytes, "largest size");
  plain("-f,--stepfactor", o->step_factor, "factor between sizes");
  plain("-i,--stepbytes", o->step_bytes, "step between sizes, instead");
  plain("-n,--iters", o->iterations, "timed calls");
  plain("-w,--warmup_iters", o->warmup, "calls before them");
  plain("-d,--datatype", o->dtype, "fp32, bf16, fp16");
  plain("-c,--check", o->check, "compare results with the known ones");
  plain("--ranks", o->ranks, "virtual ranks; under mpirun one a process");
  plain("--ranks-per-node", o->ranks_per_node, "ranks of a node");
  plain("--transport", o->transport, "virtual, mpi");
  plain("--workers", o->workers, "threads of virtual ranks; 0 = one a core");
  command->add_option("-J", o->json_file, "write nccl-tests' JSON")->type_name("FILE");
  command->add_flag("--json", o->json, "rows as JSON instead of the table");
  with_plugins(command, action, [o] {
    o->terminal = ::isatty(STDERR_FILENO) == 1;
    return bench_command(*o, std::cout, std::cerr);
  });
}

}  // namespace zeropp::experiments
