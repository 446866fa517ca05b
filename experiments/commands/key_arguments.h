#pragma once

#include <string>
#include <vector>

namespace zeropp::experiments {

/// "--key value" of `zeropp run` as "--key=value", so that the parser does not take the value
/// for a CONFIG. Options of the command itself stay, as does what follows them. The arguments
/// begin with the command's name.
std::vector<std::string> join_key_arguments(std::vector<std::string> arguments);

}  // namespace zeropp::experiments
