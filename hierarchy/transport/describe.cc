#include "hierarchy/transport/describe.h"

#include <fmt/format.h>

namespace zeropp::hierarchy {

std::string describe(const CallInfo& call) {
  return fmt::format("{} ({}, hop {}, phase {}, role {})", name(call.collective),
                     name(call.algorithm), call.hop, name(call.phase), quant::name(call.role));
}

}  // namespace zeropp::hierarchy
