#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace zeropp {

/// The caller can fix the input. `what()` reads "[area] expected X, found Y".
class UsageError : public std::runtime_error {
 public:
  UsageError(std::string_view area, std::string_view expected, std::string_view found)
      : std::runtime_error("[" + std::string(area) + "] expected " + std::string(expected) +
                           ", found " + std::string(found)) {}
};

/// A peer or a link failed, or peers disagree. Names rank, collective, sequence and sizes.
class TransportError : public std::runtime_error {
 public:
  explicit TransportError(const std::string& what) : std::runtime_error(what) {}
};

}  // namespace zeropp
