#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "quant/block_layout.h"
#include "quant/codec.h"

namespace zeropp::quant {

/// Numbers of a span, a tile at a time, as fp32: a view, or the sum of wires.
class TileSource {
 public:
  virtual ~TileSource() = default;
  std::size_t size() const { return size_; }
  /// Numbers first .. first + count, valid until the next call. count <= TiledCodec::kTile.
  /// Calls that go on where the last one ended are fast.
  virtual const float* numbers(std::size_t first, std::size_t count) = 0;

 protected:
  explicit TileSource(std::size_t n) : size_(n) {}

 private:
  std::size_t size_;
};

/// A fixed-rate block codec that works on a few thousand fp32 numbers at once: from ways to
/// encode and decode such a tile it makes the rest for any dtype, without temporaries of the
/// span's size.
class TiledCodec : public Codec {
 public:
  static constexpr std::size_t kTile = 4096;
  static_assert(kTile % BlockLayout::kGroup == 0);

  TiledCodec(std::string spec, const BlockLayout& layout)
      : spec_(std::move(spec)), layout_(layout) {}

  const std::string& spec() const final { return spec_; }
  WireBytes wire_bytes(std::size_t n) const final { return layout_.wire_bytes(n); }
  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override;
  void decode(std::span<const std::byte> wire, MutView out) const override;
  void decode_add(std::span<const std::byte> wire, std::span<float> sum) const override;
  void decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                  MutView out) const override;
  std::size_t reduce_encode(const Codec& from,
                            std::span<const std::span<const std::byte>> wires, std::size_t n,
                            float divisor, const CodecContext& ctx,
                            std::span<std::byte> wire) const override;

 protected:
  friend class SumSource;

  /// Encodes a span of x.size() > 0 numbers; the wire is large enough.
  virtual void encode_tiles(TileSource& x, const CodecContext& ctx, std::byte* wire) const = 0;

  /// fp32 values first .. first + count of a span of n: whole blocks, or a part of one that
  /// begins at a group and is at most kTile. NaN is 0x7FC00000. `add`: out += value.
  virtual void decode_tile(const std::byte* wire, std::size_t n, std::size_t first,
                           std::size_t count, bool add, float* out) const = 0;

  /// out = the sources' sum in their order, divided; NaN is 0x7FC00000.
  virtual void sum_tile(std::span<const std::span<const std::byte>> wires, std::size_t n,
                        std::size_t first, std::size_t count, float divisor, float* out) const;

  /// The tile that holds number `at`: {first, count}.
  std::pair<std::size_t, std::size_t> tile_of(std::size_t n, std::size_t at) const {
    const bool many = layout_.block <= kTile;
    const std::size_t outer = many ? kTile / layout_.block * layout_.block : layout_.block;
    const std::size_t base = at / outer * outer, inside = (at - base) / kTile * kTile;
    return {base + inside, std::min(std::min(kTile, outer - inside), n - base - inside)};
  }

  /// Calls use(first, count) for consecutive tiles.
  template <class Use>
  void for_tiles(std::size_t n, const Use& use) const {
    for (std::size_t at = 0; at < n;) {
      const auto [first, count] = tile_of(n, at);
      use(first, count);
      at = first + count;
    }
  }

  /// The wire's size; UsageError if fewer bytes were found.
  std::size_t checked(std::string_view what, std::size_t found, std::size_t n) const;
  /// And at least one source.
  void check_sources(std::string_view what, std::span<const std::span<const std::byte>> wires,
                     std::size_t n) const;

  const BlockLayout& layout() const { return layout_; }

 private:
  std::string spec_;
  BlockLayout layout_;
};

}  // namespace zeropp::quant
