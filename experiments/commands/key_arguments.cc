#include "experiments/commands/key_arguments.h"

#include <algorithm>
#include <string_view>

namespace zeropp::experiments {

std::vector<std::string> join_key_arguments(std::vector<std::string> arguments) {
  constexpr std::string_view kOptions[] = {"--out",  "--transport", "--plugin",
                                           "--json", "--dry-run",   "--fresh",
                                           "--help", "--help-keys", "--any-memory"};
  if (arguments.empty() || arguments.front() != "run") return arguments;
  std::vector<std::string> joined;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    const std::string_view name = std::string_view(argument).substr(0, argument.find('='));
    const bool option =
        std::find(std::begin(kOptions), std::end(kOptions), name) != std::end(kOptions);
    const bool alone = argument.starts_with("--") && argument.size() > 2 && !option &&
                       name.size() == argument.size();
    if (alone && i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      argument += "=" + arguments[++i];
      joined.push_back(std::move(arguments[i - 1]));
    } else {
      joined.push_back(std::move(argument));
    }
  }
  return joined;
}

}  // namespace zeropp::experiments
