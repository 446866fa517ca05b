// The zeropp program: subcommands, errors as one line, exit codes 0, 2 (usage), 1 (the rest).
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "experiments/commands/commands.h"
#include "experiments/program_info.h"
#include "experiments/text_table.h"
#include "quant/error.h"

namespace {

constexpr const char* kHelp = R"(
Start with:  zeropp run experiments/configs/quickstart.json
Each command has its own --help. Exit codes: 0, 2 for a mistake in what was asked, 1 for the rest.
)";

int fail(const char* what, int code) {
  std::string text = what;
  for (char& c : text) c = c == '\n' ? ' ' : c;
  std::cerr << "zeropp: " << zeropp::experiments::printable(text) << std::endl;
  return code;
}

/// Output that did not arrive is a failure of its own.
int flushed(int code) {
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written) return code;
  const int told = fail("[output] expected room for standard output, found an error", 1);
  return code != 0 ? code : told;
}

int run(int argc, char** argv) {
  using namespace zeropp::experiments;
  CLI::App app{"Communication compression in sharded training, measured", "zeropp"};
  app.set_version_flag("--version", program_version());
  app.require_subcommand(1);
  app.footer(kHelp);
  Action action;
  add_bench(app, action);
  add_codecs(app, action);
  add_compare(app, action);
  add_run(app, action);
  add_verify(app, action);
  add_plan(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version.
    const std::string first = argc > 1 ? argv[1] : "-";
    const auto known = app.get_subcommands([&](CLI::App* c) { return c->get_name() == first; });
    if (first[0] != '-' && known.empty()) {
      std::string names;
      for (const CLI::App* c : app.get_subcommands([](CLI::App*) { return true; })) {
        names += (names.empty() ? "" : ", ") + c->get_name();
      }
      return fail(
          ("[command line] expected one of " + names + ", found '" + first + "'").c_str(), 2);
    }
    return fail((std::string("[command line] ") + e.what() + " (see --help)").c_str(), 2);
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  // Freed pages are reused instead of returned to the kernel and faulted in again every step.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  try {
    return flushed(run(argc, argv));
  } catch (const zeropp::UsageError& e) {
    return fail(e.what(), 2);
  } catch (const std::exception& e) {
    return fail(e.what(), 1);
  }
}
