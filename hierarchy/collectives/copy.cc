#include "hierarchy/collectives/copy.h"

#include <cstdint>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace zeropp::hierarchy::detail {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kLongRun = std::size_t{16} << 10;

#ifdef __SSE2__
/// One line, through store(to, 16 bytes).
template <class Store>
void copy_line(std::byte* to, const std::byte* from, const Store& store) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source);
  const __m128i b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2);
  const __m128i d = _mm_loadu_si128(source + 3);
  store(target, a);
  store(target + 1, b);
  store(target + 2, c);
  store(target + 3, d);
}

/// A line or more, without the start-up time that the string instructions behind memcpy have.
void copy_short(std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto store = [](__m128i* at, __m128i x) { _mm_storeu_si128(at, x); };
  std::size_t at = 0;
  for (; at + kLine <= bytes; at += kLine) copy_line(to + at, from + at, store);
  if (at < bytes) copy_line(to + bytes - kLine, from + bytes - kLine, store);
}

/// Whole lines; `to` is aligned to one. Other threads see the bytes after the fence.
void stream(std::byte* to, const std::byte* from, std::size_t lines) {
  const auto store = [](__m128i* at, __m128i x) { _mm_stream_si128(at, x); };
  for (; lines > 0; --lines, to += kLine, from += kLine) copy_line(to, from, store);
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
  if (bytes >= kLine && bytes < kLongRun) return copy_short(to, from, bytes);
  if (!streams || bytes < kLine) {
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
