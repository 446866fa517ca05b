// Integers in bit planes beyond the contract: bytes by hand, costs, directions of rounding.

#include <gtest/gtest.h>

#include "quant/float_formats.h"
#include "quant/int_plane_codec.h"
#include "quant/metrics.h"
#include "quant/registry.h"
#include "tests/quant/codec_data.h"

namespace zeropp::quant {
namespace {

using namespace testing_support;  // NOLINT

TEST(IntPlane, Int3BytesByHand) {
  // Scale 1 (E8M0 127), codes q + 4; planes of two low bits and one high bit.
  const std::vector<float> x{3, -3, 1, 0, -1};
  const Bytes wire = encode(*make_codec("int3:scale=e8m0"), view(x));
  // Codes 7, 1, 5, 4, 3. h = 2: byte 0 holds codes 0, 2, 4, byte 1 codes 1, 3.
  const std::vector<int> want{127, 3 | 1 << 2 | 3 << 4, 1 | 0 << 2, 1 | 1 << 2 | 1 << 3};
  ASSERT_EQ(wire.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(static_cast<int>(wire[i]), want[i]);
}

TEST(IntPlane, CostsAreExact) {
  const std::uint64_t n = 1 << 20;
  const auto bits = [&](const std::string& spec) {
    return 8.0 * static_cast<double>(make_codec(spec)->wire_bytes(n).total()) / n;
  };
  for (const int b : {2, 3, 5, 6, 7}) {
    const std::string name = "int" + std::to_string(b);
    EXPECT_EQ(bits(name), b + 0.25);
    EXPECT_EQ(bits(name + ":scale=fp16"), b + 0.125);
    EXPECT_EQ(bits(name + ":scale=e8m0,block=32"), b + 0.25);
    EXPECT_EQ(bits(name + ":scheme=asymmetric,scale=bf16"), b + 0.25);
  }
  EXPECT_EQ(bits("int1"), 1.5);
  EXPECT_EQ(bits("int4:scheme=asymmetric"), 4.5);
}

TEST(IntPlane, PlanesReturnEveryCode) {
  std::vector<std::uint8_t> codes(BlockLayout::kGroup + 8);
  for (int bits = 1; bits <= 8; ++bits) {
    for (std::size_t m = 1; m <= BlockLayout::kGroup; ++m) {
      std::fill(codes.begin(), codes.end(), std::uint8_t{0});
      for (std::size_t i = 0; i < m; ++i) {
        codes[i] = static_cast<std::uint8_t>((i * 37 + m) & ((1U << bits) - 1));
      }
      Bytes packed(BlockLayout::packed_group(bits, m)), plain(packed.size());
      std::vector<std::uint8_t> back(codes.size());
      bit_planes::with_bits(bits, [&](auto b) {
        bit_planes::pack_group<decltype(b)::value>(codes.data(), m, packed.data());
        bit_planes::unpack_group<decltype(b)::value>(packed.data(), m, back.data());
      });
      for (std::size_t i = 0; i < m; ++i) {
        bit_planes::put(bits, plain.data(), m, i, codes[i]);
        ASSERT_EQ(back[i], codes[i]);
        ASSERT_EQ(bit_planes::get(bits, packed.data(), m, i), codes[i]);
      }
      ASSERT_TRUE(packed == plain) << bits << ' ' << m;
    }
  }
}

TEST(IntPlane, ScalesAreRoundedUpAndMinimaDown) {
  const Philox random({.purpose = Purpose::kTest, .tensor = 6});
  for (const MetaFormat scale :
       {MetaFormat::kFp32, MetaFormat::kFp16, MetaFormat::kBf16, MetaFormat::kE8M0}) {
    for (const bool asymmetric : {false, true}) {
      const IntPlaneFormat f{.bits = 5, .scale = scale, .asymmetric = asymmetric};
      for (std::uint64_t i = 0; i < 3000; ++i) {
        const float a = random.normal(2 * i), b = a + random.uniform(2 * i + 1) + 1e-3F;
        std::byte meta[8];
        write_int_meta(f, {a, b, true}, 0, meta);
        const IntMeta m = read_int_meta(f, meta);
        if (asymmetric) {
          ASSERT_LE(m.min, a);
          ASSERT_GE(m.min, a - std::fabs(a) * 0x1p-7 - 1e-7);
        }
        const double range = asymmetric ? double{b} - m.min
                                        : std::max(std::fabs(double{a}), std::fabs(double{b}));
        const double step = range / f.divisor();
        ASSERT_GE(m.step, step);
        ASSERT_LT(m.step, step * (scale == MetaFormat::kE8M0 ? 2 : 1 + 0x1p-7) + 0x1p-24);
      }
    }
  }
}

TEST(IntPlane, ConstantsAndExtremes) {
  for (const std::string b : {"int1", "int2", "int4", "int5", "int8"}) {
    const auto codec = make_codec(b + ":scheme=asymmetric");
    const std::vector<float> same(100, 0.3F);
    EXPECT_EQ(decode(*codec, encode(*codec, view(same)), 100), same) << b;
    // Both ends of a block return.
    const std::vector<float> x{-3, 5};
    const auto y = decode(*codec, encode(*codec, view(x)), 2);
    EXPECT_EQ(y[0], -3) << b;
    EXPECT_NEAR(y[1], 5, 1e-6) << b;  // A step of 8 / 31 is rounded.
  }
  EXPECT_ANY_THROW(make_codec("int1:scheme=symmetric"));
  EXPECT_ANY_THROW(make_codec("int5:scheme=deepspeed"));
  EXPECT_ANY_THROW(make_codec("int4:scheme=deepspeed,scale=bf16"));
}

TEST(IntPlane, StochasticIsUnbiased) {
  const std::size_t n = 128 * 64;
  for (const std::string spec : {"int3:rounding=stochastic,scheme=asymmetric,scale=bf16",
                                 "int5:rounding=stochastic,scale=e8m0"}) {
    const auto codec = make_codec(spec);
    EXPECT_TRUE(codec->traits().unbiased);
    const auto x = make_data("normal", n);
    double sum = 0, squares = 0;
    for (std::uint32_t s = 0; s < 8; ++s) {
      const auto y = decode(*codec, encode(*codec, view(x), context(s)), n);
      for (std::size_t i = 0; i < n; ++i) {
        const double d = double{y[i]} - x[i];
        sum += d;
        squares += d * d;
      }
    }
    EXPECT_LT(std::fabs(sum), 5 * std::sqrt(squares)) << spec;  // Five standard deviations.
    EXPECT_GT(squares, 0);
  }
}

TEST(IntPlane, SpikesTravelBesideTheirBlock) {
  // The rest, -1 .. 2, is cut in quarters of 0.75 by 2 bits alone: s = 1, z = -1, codes 0 2
  // 3 1.
  const std::vector<float> x{-1, 1000, 1, 2, -500, 0};
  const auto codec = make_codec("int2:scheme=asymmetric,spikes=1");
  const Bytes wire = encode(*codec, view(x));
  EXPECT_EQ(codec->wire_bytes(6).scale, 8U + 2 * 5);
  float meta[2], spike;
  std::memcpy(meta, wire.data(), sizeof meta);
  EXPECT_EQ(meta[0], 1);
  EXPECT_EQ(meta[1], -1);
  std::memcpy(&spike, wire.data() + 8, sizeof spike);
  EXPECT_EQ(spike, -500);
  EXPECT_EQ(static_cast<int>(wire[12]), 4);
  std::memcpy(&spike, wire.data() + 13, sizeof spike);
  EXPECT_EQ(spike, 1000);
  EXPECT_EQ(static_cast<int>(wire[17]), 1);
  EXPECT_EQ(decode(*codec, wire, 6), x);
  // An index outside the block is ignored.
  Bytes damaged = wire;
  damaged[12] = std::byte{200};
  EXPECT_EQ(decode(*codec, damaged, 6)[1], 1000);
}

TEST(IntPlane, SpikesErrLessOnHeavyTails) {
  auto x = make_data("normal", 65536);
  for (std::size_t i = 0; i < x.size(); i += 128) x[i + i / 128 % 128] *= 30;
  const auto error = [&](const std::string& spec) {
    const auto codec = make_codec(spec);
    ErrorSums sums;
    const auto y = decode(*codec, encode(*codec, view(x)), x.size());
    sums.add(view(x), view(y));
    return sums.metrics().nmse;
  };
  for (const std::string b : {"int2", "int4", "int5"}) {
    EXPECT_LT(error(b + ":block=128,scale=bf16,scheme=asymmetric,spikes=1"),
              0.2 * error(b + ":block=128,scale=bf16,scheme=asymmetric"))
        << b;
  }
  EXPECT_ANY_THROW(make_codec("int4:spikes=1"));
  EXPECT_ANY_THROW(make_codec("int5:spikes=1"));
  EXPECT_ANY_THROW(make_codec("int5:block=8192,scheme=asymmetric,spikes=1"));
}

TEST(IntPlane, MoreBitsErrLess) {
  const auto x = make_data("normal", 65536);
  double last = 10;
  for (int bits = 1; bits <= 8; ++bits) {
    for (const char* scheme : {"asymmetric", "symmetric"}) {
      if (bits == 1 && scheme[0] == 's') continue;
      const std::string spec =
          "int" + std::to_string(bits) + ":block=128,scheme=" + std::string(scheme);
      const auto codec = make_codec(spec);
      const auto y = decode(*codec, encode(*codec, view(x)), x.size());
      ErrorSums sums;
      sums.add(view(x), view(y));
      const double nmse = sums.metrics().nmse;
      RecordProperty("int" + std::to_string(bits) + "_" + scheme, std::to_string(nmse));
      if (scheme[0] == 'a') {
        EXPECT_LT(nmse, last) << spec;
        last = nmse;
      }
    }
  }
}

}  // namespace
}  // namespace zeropp::quant
