#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace zeropp::hierarchy::detail {

/// Where a call writes at least this much on a rank, its copies go past the cache: what they
/// write would not stay there, and a line that is written whole need not be read first (a
/// quarter faster here).
inline constexpr std::size_t kStreamBytes = std::size_t{4} << 20;

/// memcpy, past the cache if `streams` and the run is long.
void copy(std::byte* to, const std::byte* from, std::size_t bytes, bool streams);

/// Starts to load the front of a run, at most a page of it: the processor's own prefetch has
/// not begun by the time a short run ends.
inline void prefetch(std::span<const std::byte> run) {
  constexpr std::size_t kLine = 64, kMost = std::size_t{4} << 10;
  const std::size_t bytes = run.size() < kMost ? run.size() : kMost;
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(run.data() + at);
}

}  // namespace zeropp::hierarchy::detail
