#include "experiments/program_info.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "experiments/git_version.h"  // Made by the build.
#include "experiments/plugins.h"
#include "zero/ops/ops.h"

namespace zeropp::experiments {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

/// "plugins": what they bring and what they are; their place does not matter.
void add_plugins(Json& info) {
  for (const Plugin& p : plugins()) {
    info["plugins"].push_back({{"codecs", p.codecs}, {"sha256", p.sha256}});
  }
}

}  // namespace

std::string program_version() { return ZEROPP_VERSION; }

Json program_identity() {
  Json identity = {{"version", ZEROPP_VERSION}, {"git", ZEROPP_GIT}};
  add_plugins(identity);
  return identity;
}

Json program_info() {
  Json info = {{"version", ZEROPP_VERSION},
               {"git", ZEROPP_GIT},
               {"compiler", fmt::format("g++ {}", __VERSION__)},
               {"cpu", fmt::format("{}, {}", cpu_model(), zero::ops::describe_backend())}};
  add_plugins(info);
  return info;
}

}  // namespace zeropp::experiments
