#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "experiments/plugins.h"

namespace zeropp::experiments {

/// Set by a subcommand's callback, run by main after parsing; returns the exit code.
using Action = std::function<int()>;

/// Gives a command the option --plugin and its action, before which the plug-ins are loaded.
inline void with_plugins(CLI::App* command, Action& action, Action body) {
  auto files = std::make_shared<std::vector<std::string>>();
  command->add_option("--plugin", *files, "shared library with codecs; repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->callback([files, body = std::move(body), &action] {
    action = [files, body] {
      load_plugins(*files);
      return body();
    };
  });
}

void add_bench(CLI::App& app, Action& action);
void add_codecs(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);

}  // namespace zeropp::experiments
