#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace zeropp::quant {

/// Canonical prefix codes of up to 256 symbols in a stream whose first bit is the lowest of its
/// first byte.
inline constexpr unsigned kMaxCodeBits = 12;
using CodeLengths = std::array<std::uint8_t, 256>;  ///< Bits by symbol; 0: does not occur.

/// Huffman's code, at least two counts not zero: of equal weights lower symbols, then older
/// nodes come first. All counts are halved, rounding up, until kMaxCodeBits suffice.
CodeLengths code_lengths(std::array<std::uint64_t, 256> counts);

/// By symbol; shorter codes first, of equal lengths lower symbols. Bits in stream order.
std::array<std::uint16_t, 256> canonical_codes(const CodeLengths& lengths);

struct CodeEntry {
  std::uint8_t symbol = 0, bits = 0;
};
/// By the next kMaxCodeBits of the stream.
using CodeTable = std::array<CodeEntry, std::size_t{1} << kMaxCodeBits>;
/// False if the lengths are not those of a complete code: some stream would mean nothing.
bool make_code_table(const CodeLengths& lengths, CodeTable& table);

class CodeWriter {
 public:
  explicit CodeWriter(std::byte* to) : to_(to) {}
  void put(std::uint16_t code, unsigned bits) {
    held_ |= std::uint64_t{code} << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, held_ >>= 8) {
      *to_++ = static_cast<std::byte>(held_ & 0xFF);
    }
  }
  void flush() {
    if (count_ > 0) *to_ = static_cast<std::byte>(held_);
  }

 private:
  std::byte* to_;
  unsigned count_ = 0;
  std::uint64_t held_ = 0;
};

/// Behind the end it reads zeros; ended() says whether exactly the given bytes were needed.
class CodeReader {
 public:
  explicit CodeReader(std::span<const std::byte> from) : from_(from) {}
  std::uint8_t get(const CodeTable& table) {
    if (count_ < kMaxCodeBits) fill();
    const CodeEntry entry = table[held_ & (table.size() - 1)];
    held_ >>= entry.bits;
    count_ -= entry.bits;
    used_ += entry.bits;
    return entry.symbol;
  }
  bool ended() const { return (used_ + 7) / 8 == from_.size(); }

 private:
  void fill() {
    for (; count_ <= 56; count_ += 8) {
      const std::byte next = at_ < from_.size() ? from_[at_++] : std::byte{0};
      held_ |= static_cast<std::uint64_t>(next) << count_;
    }
  }

  std::span<const std::byte> from_;
  std::size_t at_ = 0;
  std::uint64_t held_ = 0, used_ = 0;
  unsigned count_ = 0;
};

}  // namespace zeropp::quant
