// fp8, MX formats and nf4: names, parameters, spans. The numbers are in float_block.h.

#include <bit>
#include <cmath>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/float_block.h"
#include "quant/spec_args.h"
#include "quant/tiled_codec.h"

namespace zeropp::quant {
namespace {

class FloatBlockCodec final : public TiledCodec {
 public:
  FloatBlockCodec(std::string text, const FloatBlockFormat& format)
      : TiledCodec(std::move(text), format.layout()), format_(format) {}

  CodecTraits traits() const override {
    CodecTraits t;
    t.block = format_.block;
    const bool mx = format_.scale == BlockScaleKind::kE8M0;
    t.unbiased = format_.stochastic;
    t.deterministic = !format_.stochastic;
    const double gaps = format_.stochastic ? 1 : 0.5;  // Of the distance to a neighbour.
    if (format_.element == Element::kNf4) {
      t.max_error = 0.304 * gaps;  // The widest gap between levels.
      return t;
    }
    with_element(format_.element, [&](auto format) {
      using F = decltype(format);
      if constexpr (F::kBits != 4 || !std::is_same_v<F, Nf4>) {
        // Half a unit of the largest binade; under MX what lies above kMax clips, and numbers
        // below half the smallest subnormal under the smallest scale vanish.
        const double clip = 1 - F::kMax / std::ldexp(1.0, F::kEmax + 1);
        t.max_error =
            std::max(mx && !format_.stochastic ? clip : 0.0, std::ldexp(gaps, -F::kMantissa));
        if (mx) t.floor = std::ldexp(gaps, 1 - F::kBias - F::kMantissa - 127);
      }
    });
    return t;
  }

 protected:
  void encode_tiles(TileSource& x, const CodecContext& ctx, std::byte* wire) const override {
    if (!format_.stochastic) return encode_blocks(x, nullptr, wire);
    const RoundingNoise noise(Rounding::kStochastic, ctx);
    encode_blocks(x, &noise, wire);
  }

  void decode_tile(const std::byte* wire, std::size_t n, std::size_t first, std::size_t count,
                   bool add, float* out) const override {
    const std::size_t k = first / layout().block;
    decode_float_blocks(
        format_, wire + layout().block_offset(k),
        wire + layout().payload_offset(n, k) + layout().packed(first - k * layout().block),
        count, add, out);
  }

 private:
  void encode_blocks(TileSource& x, const RoundingNoise* noise, std::byte* wire) const {
    if (layout().block > kTile) {
      for (std::size_t first = 0; first < x.size(); first += layout().block) {
        encode_large_block(x, first, noise, wire);
      }
      return;
    }
    for_tiles(x.size(), [&](std::size_t first, std::size_t count) {
      const std::size_t k = first / layout().block;
      encode_float_blocks(format_, x.numbers(first, count), count, first, noise,
                          wire + layout().block_offset(k),
                          wire + layout().payload_offset(x.size(), k));
    });
  }

  void encode_large_block(TileSource& x, std::size_t first, const RoundingNoise* noise,
                          std::byte* wire) const {
    const std::size_t k = first / layout().block;
    const std::size_t m = std::min(layout().block, x.size() - first);
    const auto pieces = [&](const auto& use) {
      for (std::size_t at = 0; at < m; at += kTile) {
        const std::size_t count = std::min(kTile, m - at);
        use(x.numbers(first + at, count), at, count);
      }
    };
    std::uint32_t top = 0;
    pieces([&](const float* numbers, std::size_t, std::size_t count) {
      top = std::max(top, std::bit_cast<std::uint32_t>(absmax_of(numbers, count)));
    });
    const BlockFactors by =
        write_scale(format_, std::bit_cast<float>(top), wire + layout().block_offset(k));
    std::byte* payload = wire + layout().payload_offset(x.size(), k);
    pieces([&](const float* numbers, std::size_t at, std::size_t count) {
      encode_float_run(format_.element, numbers, count, by, first + at, noise,
                       payload + layout().packed(at));
    });
  }

  FloatBlockFormat format_;
};

const CodecParam kRoundingParam{
    "rounding", "nearest", "nearest, or stochastic: unbiased, to one of the two neighbours"};

CodecPtr codec(const CodecSpec& spec, std::string name, std::string args, Element element,
               BlockScaleKind scale, std::size_t block) {
  refuse_shift(spec);
  const bool stochastic =
      choice_arg(spec, "rounding", "nearest", {"nearest", "stochastic"}) == "stochastic";
  if (stochastic) args += std::string(args.empty() ? "" : ",") + "rounding=stochastic";
  if (!args.empty()) name += ":" + args;
  return std::make_shared<const FloatBlockCodec>(
      std::move(name), FloatBlockFormat{element, scale, block, stochastic});
}

CodecEntry fp8_entry() {
  return {.name = "fp8",
          .help = "8-bit floats, saturating, absmax at the largest value",
          .params = {{"format", "e4m3", "e4m3 (to 448) or e5m2 (to 57344)"},
                     {"block", "128", "numbers that share a scale, 1 to 2^30; 0: the span"},
                     {"scale", "fp32", "format of the scales: fp32"},
                     kRoundingParam},
          .examples = {"fp8", "fp8:format=e5m2", "fp8:block=0", "fp8:block=37,format=e5m2",
                       "fp8:block=5000", "fp8:rounding=stochastic",
                       "fp8:block=5000,format=e5m2,rounding=stochastic"},
          .make = [](const CodecSpec& spec) {
            const std::string format = choice_arg(spec, "format", "e4m3", {"e4m3", "e5m2"});
            choice_arg(spec, "scale", "fp32", {"fp32"});
            const std::size_t block = block_arg(spec, 128, 0);
            std::string args = "block=" + std::to_string(block);
            if (format != "e4m3") args += ",format=" + format;
            return codec(spec, "fp8", args, format == "e4m3" ? Element::kE4M3 : Element::kE5M2,
                         BlockScaleKind::kFp32, block == 0 ? kWholeSpan : block);
          }};
}

/// An MX format whose elements are `first` (the default) or `second`.
CodecEntry mx_entry(const std::string& name, const std::string& help, const std::string& first,
                    Element one, const std::string& second, Element other) {
  return {.name = name,
          .help = help,
          .params = {{"format", first, first + " or " + second}, kRoundingParam},
          .examples = {name, name + ":format=" + second, name + ":rounding=stochastic",
                       name + ":format=" + second + ",rounding=stochastic"},
          .make = [=](const CodecSpec& spec) {
            const bool is_first = choice_arg(spec, "format", first, {first, second}) == first;
            return codec(spec, name, is_first ? "" : "format=" + second, is_first ? one : other,
                         BlockScaleKind::kE8M0, 32);
          }};
}

CodecEntry mxfp4_entry() {
  return {.name = "mxfp4",
          .help = "OCP MX: 32 E2M1 floats under a power of two, 4.25 bits",
          .params = {kRoundingParam},
          .examples = {"mxfp4", "mxfp4:rounding=stochastic"},
          .make = [](const CodecSpec& spec) {
            return codec(spec, "mxfp4", "", Element::kE2M1, BlockScaleKind::kE8M0, 32);
          }};
}

CodecEntry nf4_entry() {
  return {.name = "nf4",
          .help = "QLoRA's 16 normal quantiles, absmax at 1",
          .params = {{"block", "64", "numbers that share a scale, 1 to 2^30"},
                     {"scale", "fp32", "format of the scales: fp32"},
                     kRoundingParam},
          .examples = {"nf4", "nf4:block=37", "nf4:block=37,rounding=stochastic"},
          .make = [](const CodecSpec& spec) {
            choice_arg(spec, "scale", "fp32", {"fp32"});
            const std::size_t block = block_arg(spec, 64);
            return codec(spec, "nf4", "block=" + std::to_string(block), Element::kNf4,
                         BlockScaleKind::kFp32, block);
          }};
}

}  // namespace

std::vector<CodecEntry> float_codecs() {
  return {fp8_entry(),
          mx_entry("mxfp8", "OCP MX: 32 8-bit floats under a power of two, 8.25 bits", "e4m3",
                   Element::kE4M3, "e5m2", Element::kE5M2),
          mx_entry("mxfp6", "OCP MX: 32 6-bit floats under a power of two, 6.25 bits", "e2m3",
                   Element::kE2M3, "e3m2", Element::kE3M2),
          mxfp4_entry(), nf4_entry()};
}

}  // namespace zeropp::quant
