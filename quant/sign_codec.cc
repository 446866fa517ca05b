// sign: one bit a number and its block's mean magnitude, for use with error feedback.
//
// Bytes as in block_layout.h with 1-bit codes: s = fp32(sum |x| / m) a block, the sum in double
// over 8 interleaved partial sums that are folded in order; a code is 1 where x < 0 (zeros are
// positive). Decoding is -s where the code is 1, else s. A number is not finite: s is NaN.
//
// Bernstein et al., "signSGD", 2018, with the scale of Karimireddy et al., "Error feedback
// fixes SignSGD", 2019: ||x - y||^2 = (1 - ||x||_1^2 / (m ||x||_2^2)) ||x||^2, at most 1 - 1/m.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/reference.h"
#include "quant/spec_args.h"
#include "quant/tiled_codec.h"

namespace zeropp::quant {
namespace {

constexpr std::size_t kGroup = BlockLayout::kGroup;
constexpr std::size_t kLanes = 8;

struct MagnitudeSum {
  std::array<double, kLanes> lanes{};
  std::uint32_t top = 0;

  /// Runs but the last have a multiple of kLanes numbers.
  void add(const float* x, std::size_t n) {
    std::array<double, kLanes> sum = lanes;
    std::array<std::uint32_t, kLanes> most{};
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (std::size_t l = 0; l < kLanes; ++l) {
        const std::uint32_t a = std::bit_cast<std::uint32_t>(x[i + l]) & 0x7FFFFFFF;
        sum[l] += std::bit_cast<float>(a);
        most[l] = a > most[l] ? a : most[l];
      }
    }
    for (; i < n; ++i) {
      const std::uint32_t a = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFF;
      sum[i % kLanes] += std::bit_cast<float>(a);
      most[0] = std::max(most[0], a);
    }
    lanes = sum;
    for (const std::uint32_t a : most) top = std::max(top, a);
  }
  float mean(std::size_t n) const {
    if (top >= 0x7F800000) return std::bit_cast<float>(0x7FC00000);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return static_cast<float>(sum / static_cast<double>(n));
  }
};

void pack_signs(const float* x, std::size_t n, bool finite, std::byte* out) {
  for (std::size_t i = 0; i < n; i += kGroup) {
    const std::size_t m = std::min(kGroup, n - i);
    alignas(64) std::uint8_t codes[kGroup + 8] = {};
    for (std::size_t j = 0; j < m && finite; ++j) codes[j] = x[i + j] < 0 ? 1 : 0;
    bit_planes::with_size(
        m, [&](auto size) { bit_planes::pack_group<1>(codes, size, out + i / 8); });
  }
}

class SignCodec final : public TiledCodec {
 public:
  SignCodec(std::string text, std::size_t block)
      : TiledCodec(std::move(text), {.bits = 1, .block = block, .block_bytes = 4}) {}

  CodecTraits traits() const override {
    CodecTraits t;
    t.block = layout().block;
    t.max_error = 1;
    t.contraction = (1 - 0x1p-20) / static_cast<double>(t.block);
    return t;
  }

 protected:
  void encode_tiles(TileSource& x, const CodecContext&, std::byte* wire) const override {
    const BlockLayout& l = layout();
    for (std::size_t first = 0; first < x.size(); first += l.block) {
      const std::size_t m = std::min(l.block, x.size() - first), k = first / l.block;
      const float* block = nullptr;  // A block of one tile is decoded once.
      const auto tiles = [&](const auto& use) {
        for (std::size_t at = 0; at < m; at += kTile) {
          const std::size_t count = std::min(kTile, m - at);
          if (block == nullptr || m > kTile) block = x.numbers(first + at, count);
          use(block, at, count);
        }
      };
      MagnitudeSum sum;
      tiles([&](const float* p, std::size_t, std::size_t count) { sum.add(p, count); });
      const float scale = sum.mean(m);
      std::memcpy(wire + l.block_offset(k), &scale, sizeof scale);
      std::byte* payload = wire + l.payload_offset(x.size(), k);
      tiles([&](const float* p, std::size_t at, std::size_t count) {
        pack_signs(p, count, scale == scale, payload + l.packed(at));
      });
    }
  }

  void decode_tile(const std::byte* wire, std::size_t n, std::size_t first, std::size_t count,
                   bool add, float* out) const override {
    const BlockLayout& l = layout();
    for (std::size_t at = 0; at < count;) {
      const std::size_t k = (first + at) / l.block, inside = first + at - k * l.block;
      const std::size_t m = std::min(l.block - inside, count - at);
      float scale;
      std::memcpy(&scale, wire + l.block_offset(k), sizeof scale);
      const std::byte* signs = wire + l.payload_offset(n, k) + l.packed(inside);
      if (add) {
        decode_run<true>(reference::canonical(scale), signs, m, out + at);
      } else {
        decode_run<false>(reference::canonical(scale), signs, m, out + at);
      }
      at += m;
    }
  }

 private:
  template <bool kAdd>
  static void decode_run(float scale, const std::byte* in, std::size_t n, float* out) {
    // A NaN stays the one NaN: its sign is not touched.
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(scale);
    const std::uint32_t flip = scale == scale ? 0x80000000 : 0;
    for (std::size_t i = 0; i < n; i += kGroup) {
      const std::size_t m = std::min(kGroup, n - i);
      alignas(64) std::uint8_t codes[kGroup + 8];
      bit_planes::with_size(
          m, [&](auto size) { bit_planes::unpack_group<1>(in + i / 8, size, codes); });
      for (std::size_t j = 0; j < m; ++j) {
        const std::uint32_t sign = codes[j] != 0 ? flip : 0;
        const float value = std::bit_cast<float>(bits ^ sign);
        out[i + j] = kAdd ? reference::canonical(out[i + j] + value) : value;
      }
    }
  }
};

}  // namespace

std::vector<CodecEntry> sign_codecs() {
  return {{.name = "sign",
           .help = "the sign and the block's mean magnitude, for use with ef",
           .params = {{"block", "2048", "numbers that share a scale, 1 to 2^30"}},
           .examples = {"sign", "sign:block=64", "sign:block=37", "sign:block=5000"},
           .make = [](const CodecSpec& spec) -> CodecPtr {
             const std::size_t block = block_arg(spec, 2048);
             return std::make_shared<const SignCodec>("sign:block=" + std::to_string(block),
                                                      block);
           }}};
}

}  // namespace zeropp::quant
