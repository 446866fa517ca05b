#pragma once

#include <cstddef>
#include <cstring>

namespace zeropp::hierarchy::detail {

/// Where a call writes at least this much on a rank, its copies go past the cache: what they
/// write would not stay there, and a line that is written whole need not be read first (a
/// quarter faster here).
inline constexpr std::size_t kStreamBytes = std::size_t{4} << 20;

/// memcpy, past the cache if `streams` and the run is long.
void copy(std::byte* to, const std::byte* from, std::size_t bytes, bool streams);

}  // namespace zeropp::hierarchy::detail
