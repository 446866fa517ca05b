#include "quant/tiled_codec.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "quant/builtin_codecs.h"
#include "quant/convert.h"
#include "quant/error.h"

namespace zeropp::quant {
namespace {

constexpr std::size_t kTile = TiledCodec::kTile;

bool is_floats(const void* data, Dtype dtype) {
  return dtype == Dtype::kF32 && reinterpret_cast<std::uintptr_t>(data) % alignof(float) == 0;
}

/// The numbers of a view where they lie, or converted.
class ViewSource final : public TileSource {
 public:
  explicit ViewSource(ConstView x) : TileSource(x.n), x_(x) {}

  const float* numbers(std::size_t first, std::size_t count) override {
    const ConstView part = x_.slice(first, count);
    if (is_floats(part.data, part.dtype)) return static_cast<const float*>(part.data);
    convert(part, {buffer_, Dtype::kF32, count});
    return buffer_;
  }

 private:
  ConstView x_;
  alignas(64) float buffer_[kTile];
};

}  // namespace

/// The sum of wires of another codec, whose tiles need not be those that are asked for.
class SumSource final : public TileSource {
 public:
  SumSource(const TiledCodec& from, std::span<const std::span<const std::byte>> wires,
            std::size_t n, float divisor)
      : TileSource(n), from_(from), wires_(wires), divisor_(divisor) {}

  const float* numbers(std::size_t first, std::size_t count) override {
    if (first < begin_ || first > end_ || begin_ == end_) {
      begin_ = end_ = from_.tile_of(size(), first).first;
    }
    while (end_ < first + count) {
      if (end_ <= first) {
        begin_ = end_;  // Nothing that is left will be asked for.
      } else if (first != begin_) {
        std::memmove(buffer_, buffer_ + (first - begin_), (end_ - first) * sizeof(float));
        begin_ = first;
      }
      const auto [at, more] = from_.tile_of(size(), end_);
      from_.sum_tile(wires_, size(), at, more, divisor_, buffer_ + (end_ - begin_));
      end_ += more;
    }
    return buffer_ + (first - begin_);
  }

 private:
  const TiledCodec& from_;
  std::span<const std::span<const std::byte>> wires_;
  float divisor_;
  std::size_t begin_ = 0, end_ = 0;  ///< What buffer_ holds.
  alignas(64) float buffer_[2 * kTile];
};

std::size_t TiledCodec::checked(std::string_view what, std::size_t found, std::size_t n) const {
  const std::uint64_t size = layout_.wire_size(n);
  require_wire_size(spec_, what, found, size);
  return size;
}

void TiledCodec::check_sources(std::string_view what,
                               std::span<const std::span<const std::byte>> wires,
                               std::size_t n) const {
  if (wires.empty()) throw UsageError(spec_, "at least one source", "none");
  for (const auto& wire : wires) checked(what, wire.size(), n);
}

std::size_t TiledCodec::encode(ConstView x, const CodecContext& ctx,
                               std::span<std::byte> wire) const {
  const std::size_t size = checked("encode", wire.size(), x.n);
  if (x.n == 0) return size;
  ViewSource source(x);
  encode_tiles(source, ctx, wire.data());
  return size;
}

std::size_t TiledCodec::reduce_encode(const Codec& from,
                                      std::span<const std::span<const std::byte>> wires,
                                      std::size_t n, float divisor, const CodecContext& ctx,
                                      std::span<std::byte> wire) const {
  const auto* tiled = dynamic_cast<const TiledCodec*>(&from);
  if (tiled == nullptr) return Codec::reduce_encode(from, wires, n, divisor, ctx, wire);
  tiled->check_sources("reduce_encode", wires, n);
  const std::size_t size = checked("reduce_encode", wire.size(), n);
  if (n == 0) return size;
  SumSource source(*tiled, wires, n, divisor);
  encode_tiles(source, ctx, wire.data());
  return size;
}

void TiledCodec::decode(std::span<const std::byte> wire, MutView out) const {
  checked("decode", wire.size(), out.n);
  const bool direct = is_floats(out.data, out.dtype);
  alignas(64) float tile[kTile];
  for_tiles(out.n, [&](std::size_t first, std::size_t count) {
    float* to = direct ? static_cast<float*>(out.data) + first : tile;
    decode_tile(wire.data(), out.n, first, count, false, to);
    if (!direct) convert({tile, Dtype::kF32, count}, out.slice(first, count));
  });
}

void TiledCodec::decode_add(std::span<const std::byte> wire, std::span<float> sum) const {
  checked("decode_add", wire.size(), sum.size());
  for_tiles(sum.size(), [&](std::size_t first, std::size_t count) {
    decode_tile(wire.data(), sum.size(), first, count, true, sum.data() + first);
  });
}

void TiledCodec::sum_tile(std::span<const std::span<const std::byte>> wires, std::size_t n,
                          std::size_t first, std::size_t count, float divisor,
                          float* out) const {
  for (std::size_t s = 0; s < wires.size(); ++s) {
    decode_tile(wires[s].data(), n, first, count, s != 0, out);
  }
  if (divisor != 1) divide({out, Dtype::kF32, count}, divisor, {out, Dtype::kF32, count});
}

void TiledCodec::decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                            MutView out) const {
  check_sources("decode_sum", wires, out.n);
  const bool direct = is_floats(out.data, out.dtype);
  alignas(64) float tile[kTile];
  for_tiles(out.n, [&](std::size_t first, std::size_t count) {
    float* to = direct ? static_cast<float*>(out.data) + first : tile;
    sum_tile(wires, out.n, first, count, divisor, to);
    if (!direct) convert({tile, Dtype::kF32, count}, out.slice(first, count));
  });
}

}  // namespace zeropp::quant
