#include "hierarchy/collectives/copy.h"

#include <cstdint>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace zeropp::hierarchy::detail {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kShortRun = std::size_t{16} << 10;
constexpr std::size_t kLongRun = std::size_t{16} << 10;

#ifdef __SSE2__
/// A line or more, without the start-up time that the string instructions behind memcpy have.
void copy_short(std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto line = [&](std::size_t at) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_storeu_si128(target, a);
    _mm_storeu_si128(target + 1, b);
    _mm_storeu_si128(target + 2, c);
    _mm_storeu_si128(target + 3, d);
  };
  std::size_t at = 0;
  for (; at + kLine <= bytes; at += kLine) line(at);
  if (at < bytes) line(bytes - kLine);
}

/// Whole lines; `to` is aligned to one. Other threads see the bytes after the fence.
void stream(std::byte* to, const std::byte* from, std::size_t lines) {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
}
#else
void copy_short(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
void stream(std::byte* to, const std::byte* from, std::size_t lines) {
  std::memcpy(to, from, lines * kLine);
}
#endif

}  // namespace

void copy(std::byte* to, const std::byte* from, std::size_t bytes, bool streams) {
  if (bytes >= kLine && bytes < kShortRun) return copy_short(to, from, bytes);
  if (!streams || bytes < kLongRun) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t lines = (bytes - head) / kLine;
  const std::size_t tail = bytes - head - lines * kLine;
  std::memcpy(to, from, head);
  stream(to + head, from + head, lines);
  std::memcpy(to + bytes - tail, from + bytes - tail, tail);
}

}  // namespace zeropp::hierarchy::detail
