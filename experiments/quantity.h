#pragma once

#include <cstdint>
#include <string_view>

namespace zeropp::experiments {

/// A whole number >= 1 as people type it: "7500000000", "7.5e9", "7.5B" (k, M, B or G, T:
/// powers of 1000). UsageError names `area`.
std::uint64_t parse_count(std::string_view text, std::string_view area);

/// Bytes >= 1: "80e9", "32GB" (kB, MB, GB, TB: powers of 1000), "32GiB" (powers of 1024),
/// "512B".
std::uint64_t parse_bytes(std::string_view text, std::string_view area);

}  // namespace zeropp::experiments
