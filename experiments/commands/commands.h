#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace zeropp::experiments {

/// Set by a subcommand's callback, run by main after parsing; returns the exit code.
using Action = std::function<int()>;

void add_run(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);

}  // namespace zeropp::experiments
