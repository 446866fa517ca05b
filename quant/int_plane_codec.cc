// int1 .. int8 with bit planes: names, parameters, spans. See int_plane_codec.h for the bytes.

#include "quant/int_plane_codec.h"

#include <cfloat>
#include <cmath>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/error.h"
#include "quant/reference.h"
#include "quant/spec_args.h"
#include "quant/tiled_codec.h"

namespace zeropp::quant {
namespace {

class IntPlaneCodec final : public TiledCodec {
 public:
  IntPlaneCodec(std::string text, const IntPlaneFormat& format)
      : TiledCodec(std::move(text), format.layout()), format_(format) {}

  CodecTraits traits() const override { return int_plane_traits(format_); }

 protected:
  void encode_tiles(TileSource& x, const CodecContext& ctx, std::byte* wire) const override {
    if (format_.rounding == Rounding::kNearest) return encode_blocks(x, nullptr, wire);
    const RoundingNoise noise(format_.rounding, ctx);
    encode_blocks(x, &noise, wire);
  }

  void decode_tile(const std::byte* wire, std::size_t n, std::size_t first, std::size_t count,
                   bool add, float* out) const override {
    const std::size_t k = first / layout().block;
    decode_int_blocks(
        format_, wire + layout().block_offset(k),
        wire + layout().payload_offset(n, k) + layout().packed(first - k * layout().block),
        count, add, out);
  }

 private:
  void encode_blocks(TileSource& x, const RoundingNoise* noise, std::byte* wire) const {
    const BlockLayout& l = layout();
    if (l.block > kTile) {
      for (std::size_t first = 0; first < x.size(); first += l.block) {
        encode_large_block(x, first, noise, wire);
      }
      return;
    }
    for_tiles(x.size(), [&](std::size_t first, std::size_t count) {
      const std::size_t k = first / l.block;
      encode_int_blocks(format_, x.numbers(first, count), count, first, noise,
                        wire + l.block_offset(k), wire + l.payload_offset(x.size(), k));
    });
  }

  void encode_large_block(TileSource& x, std::size_t first, const RoundingNoise* noise,
                          std::byte* wire) const {
    const BlockLayout& l = layout();
    const std::size_t k = first / l.block, m = std::min(l.block, x.size() - first);
    const auto pieces = [&](const auto& use) {
      for (std::size_t at = 0; at < m; at += kTile) {
        const std::size_t count = std::min(kTile, m - at);
        use(x.numbers(first + at, count), at, count);
      }
    };
    IntRange all{FLT_MAX, -FLT_MAX, true};
    pieces([&](const float* numbers, std::size_t, std::size_t count) {
      const IntRange range = int_range(numbers, count);
      all = {std::min(all.min, range.min), std::max(all.max, range.max),
             all.finite && range.finite};
    });
    const double shift = format_.rounding == Rounding::kShift ? noise->shift(k) : 0;
    const IntFactors by = write_int_meta(format_, all, shift, wire + l.block_offset(k));
    std::byte* payload = wire + l.payload_offset(x.size(), k);
    pieces([&](const float* numbers, std::size_t at, std::size_t count) {
      encode_int_run(format_, by, numbers, count, first + at, noise, payload + l.packed(at));
    });
  }

  IntPlaneFormat format_;
};

}  // namespace

CodecTraits int_plane_traits(const IntPlaneFormat& f) {
  CodecTraits t;
  const bool fp16 = f.scale == MetaFormat::kFp16;
  t.block = f.block;
  t.deterministic = f.rounding == Rounding::kNearest;
  t.unbiased = !t.deterministic && !fp16;  // fp16 clips from 65504 on.
  // Half a step or a step of at most the range (2 A with a minimum, itself rounded down),
  // which the scale's rounding stretches; fp16 may clip everything.
  const double stretch = f.scale == MetaFormat::kE8M0   ? 2
                         : f.scale == MetaFormat::kFp32 ? 1 + 0x1p-12
                                                        : 1 + 0x1p-6;
  const double steps = f.stochastic() ? 1 : 0.5;
  const double range = f.asymmetric ? 2.02 : 1;
  const bool shift = f.rounding == Rounding::kShift;  // Spends a level.
  t.max_error = steps * range * stretch / (f.divisor() - (shift ? 1 : 0)) + 0x1p-20;
  if (fp16) t.max_error = std::max(t.max_error, 1.0);
  t.floor = fp16                           ? 0x1p-23
            : f.scale == MetaFormat::kBf16 ? 0x1p-132
            : f.scale == MetaFormat::kE8M0 ? 0x1p-126
                                           : 0x1p-148;
  return t;
}

CodecPtr make_int_plane(int bits, std::size_t default_block, const CodecSpec& spec) {
  IntPlaneFormat f;
  f.bits = bits;
  f.block = block_arg(spec, default_block);
  const std::string scale = choice_arg(spec, "scale", "fp32", {"fp32", "fp16", "bf16", "e8m0"});
  f.scale = scale == "fp32"   ? MetaFormat::kFp32
            : scale == "fp16" ? MetaFormat::kFp16
            : scale == "bf16" ? MetaFormat::kBf16
                              : MetaFormat::kE8M0;
  const std::string usual = bits == 1 ? "asymmetric" : "symmetric";
  const std::string scheme =
      bits == 1 ? choice_arg(spec, "scheme", usual, {"asymmetric"})
                : choice_arg(spec, "scheme", usual, {"symmetric", "asymmetric"});
  f.asymmetric = scheme == "asymmetric";
  const bool shift = f.asymmetric && bits > 1 && scale == "fp32";
  if (!shift) refuse_shift(spec);
  f.rounding =
      shift ? parse_rounding(choice_arg(spec, "rounding", "nearest",
                                        {"nearest", "stochastic", "correlated", "shift"}))
            : parse_rounding(choice_arg(spec, "rounding", "nearest",
                                        {"nearest", "stochastic", "correlated"}));
  std::string text = "int" + std::to_string(bits) + ":block=" + std::to_string(f.block);
  if (f.rounding != Rounding::kNearest) text += ",rounding=" + std::string(name(f.rounding));
  if (scale != "fp32") text += ",scale=" + scale;
  if (scheme != usual) text += ",scheme=" + scheme;
  if (!f.asymmetric) refuse_spikes(spec);
  const bool spikes = f.asymmetric ? choice_arg(spec, "spikes", "0", {"0", "1"}) == "1"
                                   : choice_arg(spec, "spikes", "0", {"0"}) == "1";
  if (spikes) return make_int_spikes(text + ",spikes=1", f);
  return std::make_shared<const IntPlaneCodec>(std::move(text), f);
}

}  // namespace zeropp::quant
