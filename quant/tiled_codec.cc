#include "quant/tiled_codec.h"

#include <cstdint>

#include "quant/builtin_codecs.h"
#include "quant/convert.h"
#include "quant/error.h"

namespace zeropp::quant {

std::size_t TiledCodec::checked(std::string_view what, std::size_t found, std::size_t n) const {
  const std::uint64_t size = layout_.wire_size(n);
  require_wire_size(spec_, what, found, size);
  return size;
}

const float* TiledCodec::floats(ConstView x, std::size_t first, std::size_t count,
                                float* buffer) {
  const ConstView part = x.slice(first, count);
  if (x.dtype == Dtype::kF32 &&
      reinterpret_cast<std::uintptr_t>(part.data) % alignof(float) == 0) {
    return static_cast<const float*>(part.data);
  }
  convert(part, {buffer, Dtype::kF32, count});
  return buffer;
}

void TiledCodec::decode(std::span<const std::byte> wire, MutView out) const {
  checked("decode", wire.size(), out.n);
  const bool direct = out.dtype == Dtype::kF32 &&
                      reinterpret_cast<std::uintptr_t>(out.data) % alignof(float) == 0;
  alignas(64) float tile[kTile];
  for_tiles(out.n, [&](std::size_t first, std::size_t count) {
    if (direct) {
      decode_tile(wire.data(), out.n, first, count, static_cast<float*>(out.data) + first);
    } else {
      decode_tile(wire.data(), out.n, first, count, tile);
      convert({tile, Dtype::kF32, count}, out.slice(first, count));
    }
  });
}

void TiledCodec::decode_add(std::span<const std::byte> wire, std::span<float> sum) const {
  checked("decode_add", wire.size(), sum.size());
  alignas(64) float tile[kTile];
  for_tiles(sum.size(), [&](std::size_t first, std::size_t count) {
    decode_tile(wire.data(), sum.size(), first, count, tile);
    accumulate(mut_view(sum.subspan(first, count)), {tile, Dtype::kF32, count});
  });
}

void TiledCodec::decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                            MutView out) const {
  if (wires.empty()) throw UsageError(spec_, "at least one source", "none");
  for (const auto& wire : wires) checked("decode_sum", wire.size(), out.n);
  alignas(64) float sum[kTile];
  alignas(64) float tile[kTile];
  for_tiles(out.n, [&](std::size_t first, std::size_t count) {
    decode_tile(wires[0].data(), out.n, first, count, sum);
    for (const auto& wire : wires.subspan(1)) {
      decode_tile(wire.data(), out.n, first, count, tile);
      accumulate({sum, Dtype::kF32, count}, {tile, Dtype::kF32, count});
    }
    divide({sum, Dtype::kF32, count}, divisor, out.slice(first, count));
  });
}

}  // namespace zeropp::quant
