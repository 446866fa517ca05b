#include "experiments/quantity.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <string>

#include "quant/error.h"

namespace zeropp::experiments {
namespace {

struct Suffix {
  std::string_view name;
  double factor;
};

constexpr Suffix kCounts[] = {{"", 1},    {"k", 1e3}, {"K", 1e3}, {"M", 1e6},
                              {"B", 1e9}, {"G", 1e9}, {"T", 1e12}};
constexpr Suffix kBytes[] = {{"", 1},         {"B", 1},        {"kB", 1e3},    {"KB", 1e3},
                             {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},   {"KiB", 0x1p10},
                             {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};

std::uint64_t parse(std::string_view text, std::span<const Suffix> suffixes,
                    std::string_view area, std::string_view expected) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  const auto suffix = std::find_if(suffixes.begin(), suffixes.end(),
                                   [&](const Suffix& s) { return s.name == rest; });
  constexpr double kMax = 0x1p53;  // Whole numbers are exact in a double up to here.
  if (error == std::errc() && suffix != suffixes.end()) {
    const double value = std::round(number * suffix->factor);
    const bool whole = std::abs(value - number * suffix->factor) <= 1e-12 * value;
    if (whole && value >= 1 && value <= kMax) return static_cast<std::uint64_t>(value);
  }
  throw UsageError(area, expected, "'" + std::string(text) + "'");
}

}  // namespace

std::uint64_t parse_count(std::string_view text, std::string_view area) {
  return parse(text, kCounts, area, "a whole number from 1 to 2^53, like 7.5e9 or 7.5B");
}

std::uint64_t parse_bytes(std::string_view text, std::string_view area) {
  return parse(text, kBytes, area, "bytes, like 80e9, 32GB (1e9) or 32GiB (2^30)");
}

}  // namespace zeropp::experiments
