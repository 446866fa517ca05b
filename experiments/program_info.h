#pragma once

#include <string>

#include "experiments/json_io.h"

namespace zeropp::experiments {

/// "program" of the results: version, git commit of the build ("+dirty" if it had changes),
/// compiler, and CPU with the instruction set that oneDNN uses. Nothing of the environment.
Json program_info();
std::string program_version();
/// Of these the version and the git commit: programs that differ here may compute otherwise.
Json program_identity();

}  // namespace zeropp::experiments
