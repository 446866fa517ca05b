// The integer block codecs beyond the contract: bytes by hand, extremes, schemes, offsets.

#include "quant/int_block.h"

#include <gtest/gtest.h>

#include <limits>

#include "quant/convert.h"
#include "quant/memory.h"
#include "quant/registry.h"
#include "quant/rng.h"
#include "tests/quant/codec_data.h"

namespace zeropp::quant {
namespace {

using namespace testing_support;  // NOLINT

std::vector<int> as_ints(const Bytes& bytes, std::size_t from, std::size_t to) {
  std::vector<int> out;
  for (std::size_t i = from; i < to; ++i) out.push_back(static_cast<int>(bytes[i]));
  return out;
}

float scale_at(const Bytes& wire, std::size_t block) {
  float s;
  std::memcpy(&s, &wire[4 * block], 4);
  return s;
}

TEST(IntBlock, Int8BytesByHand) {
  // Block 1: absmax 254, scale 2. Block 2: absmax 1, scale 1/127.
  const std::vector<float> x{254, -254, 3, 5, -1, 0.5F};
  const Bytes wire = encode(*make_codec("int8:block=4"), view(x));
  ASSERT_EQ(wire.size(), 8U + 6U);
  EXPECT_EQ(scale_at(wire, 0), 2.0F);
  EXPECT_EQ(scale_at(wire, 1), 1.0F / 127);
  // 1.5 and 2.5 are ties and go to even; 63.5 too.
  EXPECT_EQ(as_ints(wire, 8, 14), (std::vector<int>{127, 0x81, 2, 2, 0x81, 64}));
}

TEST(IntBlock, Int4BytesByHand) {
  // One block of 37: a group of 32 in halves of 16, then a group of 5 in halves of 3.
  std::vector<float> x(37);
  for (std::size_t i = 0; i < 37; ++i) x[i] = static_cast<float>(static_cast<int>(i % 15) - 7);
  const Bytes wire = encode(*make_codec("int4:block=37"), view(x));
  ASSERT_EQ(wire.size(), 4U + 16U + 3U);
  EXPECT_EQ(scale_at(wire, 0), 1.0F);
  const auto nibble = [&](std::size_t i) { return static_cast<int>(x[i]) & 15; };
  std::vector<int> want;
  for (std::size_t i = 0; i < 16; ++i) want.push_back(nibble(i) | nibble(16 + i) << 4);
  want.push_back(nibble(32) | nibble(35) << 4);
  want.push_back(nibble(33) | nibble(36) << 4);
  want.push_back(nibble(34));
  EXPECT_EQ(as_ints(wire, 4, 23), want);
}

TEST(IntBlock, BooksPayloadScaleAndPadding) {
  EXPECT_EQ(make_codec("int8:block=4")->wire_bytes(6),
            (WireBytes{.payload = 6, .scale = 8, .padding = 0}));
  EXPECT_EQ(make_codec("int4")->wire_bytes(256),
            (WireBytes{.payload = 128, .scale = 8, .padding = 0}));
  // An odd tail: its last byte is half padding, and booked as such.
  EXPECT_EQ(make_codec("int4")->wire_bytes(129),
            (WireBytes{.payload = 64, .scale = 8, .padding = 1}));
  // Odd blocks start on a byte each: 3 blocks of 3 are 6 bytes for 36 bits.
  EXPECT_EQ(make_codec("int4:block=3")->wire_bytes(9),
            (WireBytes{.payload = 4, .scale = 12, .padding = 2}));
}

TEST(IntBlock, OffsetsAre64Bit) {
  for (const std::uint64_t n : {(1ULL << 31) - 1, 1ULL << 31, 1ULL << 33}) {
    EXPECT_EQ(make_codec("int8")->wire_bytes(n).total(), n + 4 * ((n + 2047) / 2048));
    EXPECT_EQ(make_codec("int4")->wire_bytes(n).total(), (n + 1) / 2 + 4 * ((n + 127) / 128));
    EXPECT_EQ(make_codec("int8:block=1")->wire_bytes(n).total(), 5 * n);
    EXPECT_EQ(make_codec("bf16")->wire_bytes(n).total(), 2 * n);
    const IntBlockFormat f{.bits = 4, .block = 128};
    const std::uint64_t last = f.blocks(n) - 1;
    EXPECT_EQ(f.payload_offset(n, last), 4 * f.blocks(n) + last * 64);
    EXPECT_EQ(f.wire_size(n), f.payload_offset(n, last) + (n - last * 128 + 1) / 2);
  }
}

TEST(IntBlock, BothSignsOfAnExtremeSurviveUnlessDeepspeed) {
  for (const char* bits : {"int8", "int4"}) {
    const double top = std::string(bits) == "int8" ? 127 : 7;
    for (const float one : {1.0F, -1.0F}) {
      const std::vector<float> x(128, one);
      const std::string spec = std::string(bits) + ":block=128";
      for (const float y : decode(*make_codec(spec), encode(*make_codec(spec), view(x)), 128)) {
        EXPECT_NEAR(y, one, 1e-6);
      }
      const auto deepspeed = make_codec(spec + ",scheme=deepspeed");
      for (const float y : decode(*deepspeed, encode(*deepspeed, view(x)), 128)) {
        EXPECT_EQ(y, one > 0 ? top / (top + 1) : -1.0);  // 0.875 with 4 bits.
      }
    }
  }
}

TEST(IntBlock, LargestFloatsStayFinite) {
  for (const char* spec : {"int8", "int4", "int8:scheme=deepspeed", "int4:rounding=stochastic",
                           "int8:rounding=stochastic,scheme=deepspeed"}) {
    const auto codec = make_codec(spec);
    for (const float top : {FLT_MAX, 0x1p120F, 0x1.FFFFFEp126F, 0x1.8p127F}) {
      std::vector<float> x{top, -top, top / 2, 0, -top / 3};
      const auto y = decode(*codec, encode(*codec, view(x)), x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_TRUE(std::isfinite(y[i])) << spec << ' ' << x[i];
        EXPECT_LE(std::fabs(double{x[i]} - y[i]), codec->traits().max_error * top) << spec;
      }
    }
  }
}

TEST(IntBlock, SmallestFloatsAreNotLost) {
  for (const char* spec : {"int8", "int4", "int8:scheme=deepspeed"}) {
    const auto codec = make_codec(spec);
    // Multiples of the smallest subnormal up to 7 are exact: the scale is that subnormal.
    std::vector<float> x;
    for (int i = -7; i <= 7; ++i) x.push_back(static_cast<float>(i) * 0x1p-149F);
    const auto y = decode(*codec, encode(*codec, view(x)), x.size());
    EXPECT_TRUE(y == x) << spec;
  }
  for (int e = -149; e < -90; ++e) {
    const auto codec = make_codec("int8");
    const std::vector<float> x{std::ldexp(1.0F, e), -std::ldexp(1.0F, e), 0};
    const auto y = decode(*codec, encode(*codec, view(x)), 3);
    // 127 scales; a subnormal scale is rounded up by less than one unit.
    EXPECT_NEAR(y[0] / std::ldexp(1.0, e), 1, 1e-6 + 127 * std::ldexp(1.0, -149 - e)) << e;
    EXPECT_EQ(y[1], -y[0]);
    EXPECT_EQ(y[2], 0.0F);
  }
}

TEST(IntBlock, OneBadNumberPoisonsItsBlockOnly) {
  const auto codec = make_codec("int4:block=32");
  for (const float bad : {NAN, INFINITY, -INFINITY, -std::nanf("1")}) {
    for (const std::size_t at : {32UL, 47UL, 63UL}) {
      auto x = make_data("normal", 100);
      x[at] = bad;
      const auto y = decode(*codec, encode(*codec, view(x)), 100);
      for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(std::isnan(y[i]), i / 32 == 1) << i;
    }
  }
}

TEST(IntBlock, NeighboursDoNotMatter) {
  // A block's scale, bytes and (nearest) values are its own: a longer span begins the same.
  const auto codec = make_codec("int8:block=64");
  const auto x = make_data("outlier", 640);
  const auto whole = decode(*codec, encode(*codec, view(x)), 640);
  for (std::size_t first = 0; first < 640; first += 64) {
    const auto part = decode(*codec, encode(*codec, view(x).slice(first, 64)), 64);
    EXPECT_TRUE(std::equal(part.begin(), part.end(),
                           whole.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}

TEST(IntBlock, MixedLevelsAndBlocksReduceByDefinition) {
  // Hops change block sizes that do not divide each other, and widths.
  const std::vector<std::string> specs{
      "int8:block=2048",       "int8:block=100",
      "int4:block=128",        "int4:block=37,rounding=stochastic",
      "int8:block=1073741824", "int4:block=5000"};
  for (const std::size_t n : {1UL, 127UL, 4099UL, 10000UL}) {
    for (const std::string& a : specs) {
      const auto from = make_codec(a);
      std::vector<Bytes> encoded;
      for (std::uint32_t s = 0; s < 3; ++s) {
        encoded.push_back(encode(*from, view(make_data("normal", n, s)), context(s)));
      }
      const std::vector<std::span<const std::byte>> wires(encoded.begin(), encoded.end());
      std::vector<float> mean(n);
      from->decode_sum(wires, 3, mut_view(mean));
      for (const std::string& b : specs) {
        const auto to = make_codec(b);
        const Bytes want = encode(*to, view(mean));
        for (const std::string& target : simd_targets()) {
          const OnTarget forced(target);
          Bytes got(want.size(), std::byte{0xA5});
          ASSERT_EQ(to->reduce_encode(*from, wires, n, 3, context(), got), want.size());
          ASSERT_TRUE(got == want) << a << " to " << b << " n=" << n << ' ' << target;
        }
      }
    }
  }
}

// Long spans run in windows of blocks; every kind of block stands beside every other there.
TEST(IntBlock, WindowsOfMixedBlocksMatchTheReference) {
  constexpr std::size_t kPiece = 64, kN = 9 * 2048 + 77;
  const Philox random({.purpose = Purpose::kTest});
  const float magnitudes[] = {1.0F, 0x1p-60F, 0x1p-110F, 0x1p-140F, 0.0F, 0x1p119F, 0x1p127F};
  Tensor x(nullptr, MemoryKind::kHost, Dtype::kF32, kN);
  for (std::size_t i = 0; i < kN; ++i) {
    const auto words = random.block(i);
    const std::uint32_t kind = random.block((std::uint64_t{1} << 32) + i / kPiece)[0] % 12;
    const float size = kind < 7 ? magnitudes[kind] : 3.0F;  // Five in twelve are ordinary too.
    x.f32()[i] = size * (static_cast<float>(words[0]) * 0x1p-31F - 1.0F);
  }
  x.f32()[5000] = std::numeric_limits<float>::quiet_NaN();
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    Tensor y(nullptr, MemoryKind::kHost, dtype, kN);
    convert(x.view(), y.view());
    for (const int bits : {4, 8}) {
      for (const std::size_t block : {64, 100, 128, 512, 2048, 4096}) {
        for (const BlockScheme scheme : {BlockScheme::kSymmetric, BlockScheme::kDeepspeed}) {
          const IntBlockFormat f{.bits = bits, .block = block, .scheme = scheme};
          std::vector<std::byte> want(f.wire_size(kN)), got(want.size());
          reference::encode_blocks(f, y.view(), nullptr, want.data());
          encode_blocks(f, y.view(), nullptr, got.data());
          ASSERT_EQ(got, want) << name(dtype) << " bits " << bits << " block " << block;
        }
      }
    }
  }
}

TEST(IntBlock, LongSpansTakeTheStreamingPath) {
  // Long enough for non-temporal stores; their result is that of a short span.
  const std::size_t n = (std::size_t{32} << 20) / 4;
  const auto codec = make_codec("int4");
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 2654435761U % 1000) - 500;
  const Bytes wire = encode(*codec, view(x));
  Tensor y(nullptr, MemoryKind::kHost, Dtype::kF32, n);
  codec->decode(wire, y.view());
  for (std::size_t first = 0; first < n; first += n / 8) {
    const Bytes part = encode(*codec, view(x).slice(first, 4096));
    const auto want = decode(*codec, part, 4096);
    ASSERT_EQ(std::memcmp(want.data(), y.f32() + first, 4096 * 4), 0) << first;
  }
}

}  // namespace
}  // namespace zeropp::quant
