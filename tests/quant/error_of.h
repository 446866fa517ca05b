#pragma once

#include <string>

#include "quant/error.h"
#include "quant/registry.h"

namespace zeropp::quant {

/// What make_codec says of a spec that it refuses, or "no error".
inline std::string error_of(const std::string& spec) {
  try {
    make_codec(spec);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace zeropp::quant
