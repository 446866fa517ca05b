#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "quant/block_layout.h"
#include "quant/codec.h"

namespace zeropp::quant {

/// A fixed-rate block codec that works on a few thousand fp32 numbers at once: from a way to
/// decode such a tile it makes decode, decode_add and decode_sum of any dtype, without
/// temporaries of the span's size.
class TiledCodec : public Codec {
 public:
  TiledCodec(std::string spec, const BlockLayout& layout)
      : spec_(std::move(spec)), layout_(layout) {}

  const std::string& spec() const final { return spec_; }
  WireBytes wire_bytes(std::size_t n) const final { return layout_.wire_bytes(n); }
  void decode(std::span<const std::byte> wire, MutView out) const final;
  void decode_add(std::span<const std::byte> wire, std::span<float> sum) const final;
  void decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                  MutView out) const final;

 protected:
  static constexpr std::size_t kTile = 4096;
  static_assert(kTile % BlockLayout::kGroup == 0);

  /// fp32 values first .. first + count of a span of n: whole blocks, or a part of one that
  /// begins at a group and is at most kTile. NaN is 0x7FC00000.
  virtual void decode_tile(const std::byte* wire, std::size_t n, std::size_t first,
                           std::size_t count, float* out) const = 0;

  /// Calls use(first, count) for consecutive tiles.
  template <class Use>
  void for_tiles(std::size_t n, const Use& use) const {
    const bool many = layout_.block <= kTile;
    const std::size_t outer = many ? kTile / layout_.block * layout_.block : layout_.block;
    for (std::size_t first = 0; first < n; first += outer) {
      const std::size_t end = std::min(n - first, outer);
      for (std::size_t at = 0; at < end; at += kTile) {
        use(first + at, std::min(kTile, end - at));
      }
    }
  }

  /// The numbers themselves, or converted into `buffer` of kTile.
  static const float* floats(ConstView x, std::size_t first, std::size_t count, float* buffer);

  /// The wire's size; UsageError if fewer bytes were found.
  std::size_t checked(std::string_view what, std::size_t found, std::size_t n) const;

  const BlockLayout& layout() const { return layout_; }

 private:
  std::string spec_;
  BlockLayout layout_;
};

}  // namespace zeropp::quant
