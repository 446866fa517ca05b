#include <unistd.h>

#include <iostream>
#include <memory>

#include "experiments/codecs/command.h"
#include "experiments/commands/commands.h"

namespace zeropp::experiments {
namespace {

constexpr const char* kHelp = R"(
Lists every codec with its parameters and traits. --measure prints what it sends, how it errs and how
fast it is, beside memcpy; --check runs the contract suite, which every codec must pass.

  zeropp codecs
  zeropp codecs --measure --codec int4 --codec mxfp4 --n 4M --dtype bf16
  zeropp codecs --measure --data all --csv errors.csv --picture errors.svg
  zeropp codecs --measure --safetensors model.safetensors --tensors '*mlp*' --codec int4
  zeropp codecs --plugin ./log_codec.so --check

Data: normal, heavy-tailed, sparse, outlier, constant, denormal, all. A tensor of a file stands for
every rank, rotated by rank/ranks of its length. --picture needs python3 with matplotlib.
)";

}  // namespace

void add_codecs(CLI::App& app, Action& action) {
  auto o = std::make_shared<CodecsOptions>();
  CLI::App* command = app.add_subcommand("codecs", "list, measure or check the codecs");
  command->footer(kHelp);
  CLI::Option* measure = command->add_flag("--measure", o->measure, "bits, errors and rates");
  command->add_flag("--check", o->check, "run the contract suite")->excludes(measure);
  const auto repeatable = [&](const char* name, std::vector<std::string>& to, const char* help,
                              const char* type) {
    return command->add_option(name, to, help)->type_name(type)->allow_extra_args(false);
  };
  const auto measured = [&](const char* name, auto& to, const char* help) {
    return command->add_option(name, to, help)->capture_default_str()->needs(measure);
  };
  repeatable("--codec", o->codecs, "all examples (of the plug-ins, if given)", "SPEC");
  repeatable("--dtype", o->dtypes, "fp32 (or the tensor's own), bf16, fp16", "DTYPE")
      ->needs(measure);
  repeatable("--data", o->data, "normal; see below", "FAMILY")->needs(measure);
  measured("--n", o->n, "numbers a tensor: 65536, 4M");
  measured("--safetensors", o->safetensors, "measure its tensors")->type_name("FILE");
  measured("--tensors", o->tensors, "names of tensors: '*.weight'")->type_name("GLOB");
  measured("--ranks", o->ranks, "ranks of a mean")->check(CLI::Range(1, 1024));
  measured("--ranks-per-node", o->ranks_per_node, "ranks of the first of two hops");
  measured("--roundings", o->roundings, "draws of a stochastic codec")
      ->check(CLI::Range(4, 1000000));
  measured("--repetitions", o->repetitions, "of a timing")->check(CLI::Range(1, 1000000));
  measured("--csv", o->csv, "write the figures")->type_name("FILE");
  measured("--picture", o->picture, "draw error against bits: .svg or .png")->type_name("FILE");
  command->add_flag("--json", o->json, "machine-readable result");
  with_plugins(command, action, [o] {
    o->terminal = ::isatty(STDERR_FILENO) == 1;
    return codecs_command(*o, std::cout, std::cerr);
  });
}

}  // namespace zeropp::experiments
