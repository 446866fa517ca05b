#pragma once

#include <string>

#include "experiments/json_io.h"

namespace zeropp::experiments {

/// "program" of the results: version, git commit of the build ("+dirty" if it had changes),
/// compiler, CPU with the instruction set that oneDNN uses, and plug-ins with their SHA-256.
/// Nothing of the environment.
Json program_info();
std::string program_version();
/// Of these the version, the git commit and the plug-ins: programs that differ here may compute
/// otherwise.
Json program_identity();

}  // namespace zeropp::experiments
