#include "hierarchy/transport/describe.h"

#include <fmt/format.h>

namespace zeropp::hierarchy {

std::string describe(const CallInfo& call) {
  return fmt::format("{} ({}, hop {}, phase {}, role {})", name(call.collective),
                     name(call.algorithm), call.hop, name(call.phase), quant::name(call.role));
}

std::string describe_difference(const CallContent& expected, const CallContent& found) {
  if (expected == found) return "";
  std::string text;
  const auto tell = [&](const char* what, const std::string& a, const std::string& b) {
    if (a == b) return;
    text += fmt::format("{}{}: expected {}, found {}", text.empty() ? " (" : "; ", what, a, b);
  };
  const auto codecs = [](std::uint32_t hash) {
    return hash == 0 ? std::string("none") : fmt::format("those with hash {:08x}", hash);
  };
  const auto group = [](const CallContent& c) {
    return fmt::format("modulus {} to {}", c.coarse, c.fine);
  };
  tell("count", fmt::format("{} elements", expected.elements),
       fmt::format("{} elements", found.elements));
  tell("dtype", std::string(quant::name(expected.dtype)),
       std::string(quant::name(found.dtype)));
  tell("tensors and codecs", codecs(expected.codecs), codecs(found.codecs));
  tell("group", group(expected), group(found));
  return text + ")";
}

}  // namespace zeropp::hierarchy
