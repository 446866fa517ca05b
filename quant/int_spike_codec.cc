// Spike reserving (Flash Communication V2, 2025): the smallest and largest number of a block
// travel beside it, and the rest is cut finer.

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "quant/convert.h"
#include "quant/error.h"
#include "quant/int_plane_codec.h"
#include "quant/reference.h"
#include "quant/tiled_codec.h"

namespace zeropp::quant {
namespace {

/// A value in the minimum's format, saturating, and its index in the block.
struct SpikeFormat {
  MetaFormat value;
  std::size_t index_bytes;
  std::size_t bytes() const { return meta_size(value) + index_bytes; }
};

SpikeFormat spike_format(const IntPlaneFormat& f) {
  return {min_format(f.scale), f.block <= 256 ? 1U : f.block <= 65536 ? 2U : 4U};
}

float saturated(MetaFormat m, float v) {
  if (m == MetaFormat::kFp32 || v != v) return v;
  const float top = m == MetaFormat::kFp16 ? 65504.0F : from_bf16_bits(0x7F7F);
  return std::clamp(v, -top, top);
}

void write_spike(const SpikeFormat& f, float v, std::size_t at, std::byte* to) {
  v = saturated(f.value, v);
  const std::uint16_t half = f.value == MetaFormat::kFp16 ? f16_bits(v) : bf16_bits(v);
  if (f.value == MetaFormat::kFp32) {
    std::memcpy(to, &v, sizeof v);
  } else {
    std::memcpy(to, &half, sizeof half);
  }
  const auto index = static_cast<std::uint32_t>(at);
  std::memcpy(to + meta_size(f.value), &index, f.index_bytes);
}

std::pair<float, std::size_t> read_spike(const SpikeFormat& f, const std::byte* from) {
  float v;
  std::uint16_t half = 0;
  if (f.value == MetaFormat::kFp32) {
    std::memcpy(&v, from, sizeof v);
  } else {
    std::memcpy(&half, from, sizeof half);
    v = f.value == MetaFormat::kFp16 ? from_f16_bits(half) : from_bf16_bits(half);
  }
  std::uint32_t index = 0;
  std::memcpy(&index, from + meta_size(f.value), f.index_bytes);
  return {reference::canonical(v), index};
}

/// The first smallest and first largest number. A NaN is neither.
struct Spikes {
  std::size_t low = 0, high = 0;
};
Spikes find_spikes(const float* x, std::size_t n) {
  Spikes s;
  for (std::size_t i = 1; i < n; ++i) {
    if (x[i] < x[s.low]) s.low = i;
    if (x[i] > x[s.high]) s.high = i;
  }
  return s;
}

BlockLayout layout_of(const IntPlaneFormat& f) {
  BlockLayout l = f.layout();
  l.block_bytes += 2 * spike_format(f).bytes();
  return l;
}

/// A block's metadata: its step and minimum, then the spike of the minimum, then the other.
class IntSpikeCodec final : public TiledCodec {
 public:
  IntSpikeCodec(std::string text, const IntPlaneFormat& format)
      : TiledCodec(std::move(text), layout_of(format)), format_(format) {}

  CodecTraits traits() const override {
    CodecTraits t = int_plane_traits(format_);
    t.unbiased = t.unbiased && format_.scale == MetaFormat::kFp32;  // Others round the spikes.
    return t;
  }

 protected:
  void encode_tiles(TileSource& x, const CodecContext& ctx, std::byte* wire) const override {
    const BlockLayout& l = layout();
    const RoundingNoise random(format_.rounding, ctx);
    const RoundingNoise* noise = format_.rounding == Rounding::kNearest ? nullptr : &random;
    const SpikeFormat spike = spike_format(format_);
    const std::size_t int_bytes = format_.layout().block_bytes;
    alignas(64) float rest[kTile];
    for_tiles(x.size(), [&](std::size_t first, std::size_t count) {
      const float* numbers = x.numbers(first, count);
      for (std::size_t at = 0; at < count; at += l.block) {
        const std::size_t m = std::min(l.block, count - at), k = (first + at) / l.block;
        const Spikes s = find_spikes(numbers + at, m);
        std::byte* meta = wire + l.block_offset(k);
        std::byte* spikes = meta + int_bytes;
        std::copy_n(numbers + at, m, rest);
        if (int_range(rest, m).finite) {
          write_spike(spike, rest[s.low], s.low, spikes);
          write_spike(spike, rest[s.high], s.high, spikes + spike.bytes());
          // Another number of the block, which widens no range; if there is none, the minimum.
          std::size_t other = 0;
          while (other < m && (other == s.low || other == s.high)) ++other;
          rest[s.low] = rest[s.high] = rest[other < m ? other : s.low];
        } else {
          const float nan = std::numeric_limits<float>::quiet_NaN();
          write_spike(spike, nan, 0, spikes);
          write_spike(spike, nan, 0, spikes + spike.bytes());
        }
        encode_int_blocks(format_, rest, m, first + at, noise, meta,
                          wire + l.payload_offset(x.size(), k));
      }
    });
  }

  void decode_tile(const std::byte* wire, std::size_t n, std::size_t first, std::size_t count,
                   bool add, float* out) const override {
    const BlockLayout& l = layout();
    const SpikeFormat spike = spike_format(format_);
    const std::size_t int_bytes = format_.layout().block_bytes;
    alignas(64) float values[kTile];
    for (std::size_t at = 0; at < count; at += l.block) {
      const std::size_t m = std::min(l.block, count - at), k = (first + at) / l.block;
      const std::byte* meta = wire + l.block_offset(k);
      decode_int_blocks(format_, meta, wire + l.payload_offset(n, k), m, false, values);
      for (const std::size_t which : {0U, 1U}) {
        const auto [v, index] = read_spike(spike, meta + int_bytes + which * spike.bytes());
        if (index < m) values[index] = v;  // Damaged bytes stay inside the block.
      }
      if (add) {
        accumulate({out + at, Dtype::kF32, m}, {values, Dtype::kF32, m});
      } else {
        std::copy_n(values, m, out + at);
      }
    }
  }

 private:
  IntPlaneFormat format_;
};

}  // namespace

CodecPtr make_int_spikes(std::string text, const IntPlaneFormat& format) {
  if (format.block > TiledCodec::kTile) {
    throw UsageError(text,
                     "spikes=1 with blocks of at most " + std::to_string(TiledCodec::kTile),
                     std::to_string(format.block));
  }
  return std::make_shared<const IntSpikeCodec>(std::move(text), format);
}

}  // namespace zeropp::quant
