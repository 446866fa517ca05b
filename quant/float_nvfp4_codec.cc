// nvfp4: name, parameters, spans. The numbers are in float_nvfp4.h.

#include <cstring>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/float_nvfp4.h"
#include "quant/spec_args.h"
#include "quant/tiled_codec.h"

namespace zeropp::quant {
namespace {

class Nvfp4Codec final : public TiledCodec {
 public:
  Nvfp4Codec(std::string text, Nvfp4Rule rule)
      : TiledCodec(std::move(text),
                   {.bits = 4, .block = kNvfp4Block, .block_bytes = 1, .header_bytes = 4}),
        rule_(rule) {}

  CodecTraits traits() const override {
    CodecTraits t;
    t.block = kNvfp4Block;
    // A block that is 2^-19 of the span's largest number vanishes: its scale rounds to zero.
    t.max_error = 1;
    t.deterministic = rule_ != Nvfp4Rule::kStochastic;  // And so it stays biased there.
    return t;
  }

 protected:
  void encode_tiles(TileSource& x, const CodecContext& ctx, std::byte* wire) const override {
    const RoundingNoise random(Rounding::kStochastic, ctx);
    const RoundingNoise* noise = rule_ == Nvfp4Rule::kStochastic ? &random : nullptr;
    float max = 0;
    for_tiles(x.size(), [&](std::size_t first, std::size_t count) {
      max = std::max(max, nvfp4_finite_max(x.numbers(first, count), count));
    });
    const float t = nvfp4_span_scale(rule_, max);
    std::memcpy(wire, &t, sizeof t);
    for_tiles(x.size(), [&](std::size_t first, std::size_t count) {
      const std::size_t k = first / kNvfp4Block;
      encode_nvfp4_blocks(rule_, t, x.numbers(first, count), count, first, noise,
                          wire + layout().block_offset(k),
                          wire + layout().payload_offset(x.size(), k));
    });
  }

  void decode_tile(const std::byte* wire, std::size_t n, std::size_t first, std::size_t count,
                   bool add, float* out) const override {
    float t;
    std::memcpy(&t, wire, sizeof t);
    const std::size_t k = first / kNvfp4Block;
    decode_nvfp4_blocks(t, wire + layout().block_offset(k),
                        wire + layout().payload_offset(n, k), count, add, out);
  }

 private:
  Nvfp4Rule rule_;
};

}  // namespace

std::vector<CodecEntry> nvfp4_codecs() {
  return {
      {.name = "nvfp4",
       .help = "NVIDIA: 16 E2M1 floats under an E4M3 scale, one fp32 scale a span, 4.5 bits",
       .params =
           {{"scale", "max", "max: absmax at 6; 4over6: at 6 or at 4, whichever errs less"},
            {"rounding", "nearest",
             "nearest, or stochastic (scale=max alone): unbiased but in vanishing blocks"}},
       .examples = {"nvfp4", "nvfp4:scale=4over6", "nvfp4:rounding=stochastic"},
       .make = [](const CodecSpec& spec) -> CodecPtr {
         const std::string scale = choice_arg(spec, "scale", "max", {"max", "4over6"});
         refuse_shift(spec);
         if (scale == "4over6") {
           refuse_arg(spec, "rounding", "stochastic", "with scale=max");
           choice_arg(spec, "rounding", "nearest", {"nearest"});
           return std::make_shared<const Nvfp4Codec>("nvfp4:scale=4over6", Nvfp4Rule::k4Over6);
         }
         if (choice_arg(spec, "rounding", "nearest", {"nearest", "stochastic"}) == "nearest") {
           return std::make_shared<const Nvfp4Codec>("nvfp4", Nvfp4Rule::kMax);
         }
         return std::make_shared<const Nvfp4Codec>("nvfp4:rounding=stochastic",
                                                   Nvfp4Rule::kStochastic);
       }}};
}

}  // namespace zeropp::quant
