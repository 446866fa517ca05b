// int1 .. int8 with bit planes: names, parameters, spans. See int_plane_codec.h for the bytes.

#include "quant/int_plane_codec.h"

#include <bit>
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

constexpr std::size_t kGroup = BlockLayout::kGroup;

struct Range {
  float min = FLT_MAX, max = -FLT_MAX;
  bool finite = true;
  void add(const float* x, std::size_t n) {
    std::int32_t top = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t a = std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF;
      top = a > top ? a : top;
      min = x[i] < min ? x[i] : min;
      max = x[i] > max ? x[i] : max;
    }
    finite = finite && top < 0x7F800000;
  }
};

/// Codes of at most a group; `first` is the index of x[0] in the span.
void quantize(const IntPlaneFormat& f, const IntFactors& by, const float* x, std::size_t m,
              std::uint64_t first, const Philox* noise, std::uint8_t* codes) {
  const float shift = static_cast<float>(-f.lowest());
  for (std::size_t i = 0; i < m; ++i) {
    const float v = (x[i] * by.pre - by.offset) * by.mul;
    float q;
    if (noise == nullptr) {
      // Clamped first, adding 1.5 * 2^23 rounds to nearest even.
      const float within = std::min(std::max(v, by.low), by.high);
      q = (within + 0x1.8p23F) - 0x1.8p23F;
    } else {
      const float below = std::floor(v);
      q = below + (noise->uniform(first + i) < v - below ? 1.0F : 0.0F);
      q = std::min(std::max(q, by.low), by.high);
    }
    codes[i] = static_cast<std::uint8_t>(static_cast<int>(q + shift));
  }
}

class IntPlaneCodec final : public TiledCodec {
 public:
  IntPlaneCodec(std::string text, const IntPlaneFormat& format)
      : TiledCodec(std::move(text), format.layout()), format_(format) {}

  CodecTraits traits() const override {
    CodecTraits t;
    const bool fp16 = format_.scale == MetaFormat::kFp16;
    t.block = format_.block;
    t.deterministic = !format_.stochastic;
    t.unbiased = format_.stochastic && !fp16;  // fp16 clips from 65504 on.
    // Half a step or a step of at most the range (2 A with a minimum, itself rounded down),
    // which the scale's rounding stretches; fp16 may clip everything.
    const double stretch = format_.scale == MetaFormat::kE8M0   ? 2
                           : format_.scale == MetaFormat::kFp32 ? 1 + 0x1p-12
                                                                : 1 + 0x1p-6;
    const double steps = format_.stochastic ? 1 : 0.5;
    const double range = format_.asymmetric ? 2.02 : 1;
    t.max_error = steps * range * stretch / format_.divisor() + 0x1p-20;
    if (fp16) t.max_error = std::max(t.max_error, 1.0);
    t.floor = fp16                                 ? 0x1p-23
              : format_.scale == MetaFormat::kBf16 ? 0x1p-132
              : format_.scale == MetaFormat::kE8M0 ? 0x1p-126
                                                   : 0x1p-148;
    return t;
  }

  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    const std::size_t size = checked("encode", wire.size(), x.n);
    if (!format_.stochastic) {
      encode_blocks(x, nullptr, wire.data());
      return size;
    }
    const Philox noise = rounding_noise(ctx);
    encode_blocks(x, &noise, wire.data());
    return size;
  }

 protected:
  void decode_tile(const std::byte* wire, std::size_t n, std::size_t first, std::size_t count,
                   float* out) const override {
    const std::size_t block = layout().block;
    for (std::size_t at = 0; at < count;) {
      const std::size_t k = (first + at) / block, inside = first + at - k * block;
      const std::size_t m = std::min(block - inside, count - at);
      const IntMeta meta = read_int_meta(format_, wire + layout().block_offset(k));
      const std::byte* payload = wire + layout().payload_offset(n, k) + layout().packed(inside);
      decode_run(meta, payload, m, out + at);
      at += m;
    }
  }

 private:
  void encode_blocks(ConstView x, const Philox* noise, std::byte* wire) const {
    const BlockLayout& l = layout();
    alignas(64) float buffer[kTile];
    const auto block = [&](std::size_t first, const auto& pieces) {
      Range range;
      pieces([&](const float* p, std::size_t, std::size_t m) { range.add(p, m); });
      const std::size_t k = first / l.block;
      const IntFactors by =
          write_int_meta(format_, range.min, range.max, range.finite, wire + l.block_offset(k));
      std::byte* payload = wire + l.payload_offset(x.n, k);
      pieces([&](const float* p, std::size_t at, std::size_t m) {
        encode_run(by, p, m, first + at, noise, payload + l.packed(at));
      });
    };
    if (l.block > kTile) {
      for (std::size_t first = 0; first < x.n; first += l.block) {
        const std::size_t m = std::min(l.block, x.n - first);
        block(first, [&](const auto& use) {
          for (std::size_t at = 0; at < m; at += kTile) {
            const std::size_t count = std::min(kTile, m - at);
            use(floats(x, first + at, count, buffer), at, count);
          }
        });
      }
      return;
    }
    for_tiles(x.n, [&](std::size_t begin, std::size_t count) {
      const float* p = floats(x, begin, count, buffer);
      for (std::size_t at = 0; at < count; at += l.block) {
        const std::size_t m = std::min(l.block, count - at);
        block(begin + at, [&](const auto& use) { use(p + at, std::size_t{0}, m); });
      }
    });
  }

  void encode_run(const IntFactors& by, const float* x, std::size_t n, std::uint64_t first,
                  const Philox* noise, std::byte* out) const {
    for (std::size_t i = 0; i < n; i += kGroup) {
      const std::size_t m = std::min(kGroup, n - i);
      alignas(64) std::uint8_t codes[kGroup + 8] = {};
      if (by.zero) {
        std::fill_n(codes, m, static_cast<std::uint8_t>(-format_.lowest()));
      } else {
        quantize(format_, by, x + i, m, first + i, noise, codes);
      }
      std::byte* to = out + layout().packed(i);
      bit_planes::with_bits(format_.bits, [&](auto bits) {
        bit_planes::with_size(m, [&](auto size) {
          bit_planes::pack_group<decltype(bits)::value>(codes, size, to);
        });
      });
    }
  }

  void decode_run(IntMeta meta, const std::byte* in, std::size_t n, float* out) const {
    for (std::size_t i = 0; i < n; i += kGroup) {
      const std::size_t m = std::min(kGroup, n - i);
      alignas(64) std::uint8_t codes[kGroup + 8];
      const std::byte* from = in + layout().packed(i);
      bit_planes::with_bits(format_.bits, [&](auto bits) {
        bit_planes::with_size(m, [&](auto size) {
          bit_planes::unpack_group<decltype(bits)::value>(from, size, codes);
        });
      });
      for (std::size_t j = 0; j < m; ++j) {
        const float q = static_cast<float>(codes[j] + format_.lowest());
        const float y = (meta.min + q * meta.step) * meta.post;
        const float below = y > FLT_MAX ? FLT_MAX : y;
        out[i + j] = reference::canonical(below < -FLT_MAX ? -FLT_MAX : below);
      }
    }
  }

  IntPlaneFormat format_;
};

}  // namespace

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
  f.stochastic =
      choice_arg(spec, "rounding", "nearest", {"nearest", "stochastic"}) == "stochastic";
  std::string text = "int" + std::to_string(bits) + ":block=" + std::to_string(f.block);
  if (f.stochastic) text += ",rounding=stochastic";
  if (scale != "fp32") text += ",scale=" + scale;
  if (scheme != usual) text += ",scheme=" + scheme;
  return std::make_shared<const IntPlaneCodec>(std::move(text), f);
}

}  // namespace zeropp::quant
