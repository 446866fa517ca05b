#pragma once

// What fuzz targets share: taking numbers off the front of the input, and promises.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

namespace zeropp::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  /// The next number below `limit`; 0 where the input has ended.
  std::size_t below(std::size_t limit) {
    std::uint16_t value = 0;
    const std::size_t taken = std::min(rest_.size(), sizeof value);
    if (taken > 0) std::memcpy(&value, rest_.data(), taken);
    rest_ = rest_.subspan(taken);
    return value % limit;
  }
  std::span<const std::uint8_t> rest() const { return rest_; }

 private:
  std::span<const std::uint8_t> rest_;
};

/// Bytes of exactly that size on the heap, so that AddressSanitizer sees a read past them: the
/// source again and again.
class Exact {
 public:
  Exact(std::span<const std::uint8_t> source, std::size_t size)
      : bytes_(new std::byte[size]), size_(size) {
    for (std::size_t i = 0; i < size; ++i) {
      bytes_[i] = source.empty() ? std::byte{0} : std::byte{source[i % source.size()]};
    }
  }
  std::span<const std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_;
};

inline void promise(bool kept, const char* what) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

}  // namespace zeropp::fuzz
