// topk, sign, codebook and lossless beyond the contract: bytes by hand, costs, what is kept.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "quant/error.h"
#include "quant/prefix_code.h"
#include "quant/registry.h"
#include "tests/quant/codec_data.h"
#include "tests/quant/error_of.h"

namespace zeropp::quant {
namespace {

using namespace testing_support;  // NOLINT
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> ints(const Bytes& bytes) {
  std::vector<int> x;
  for (const std::byte b : bytes) x.push_back(static_cast<int>(b));
  return x;
}

TEST(Topk, BytesByHand) {
  // Of 8 the two largest magnitudes, places 1 and 6 in 3 bits each: 1 | 6 << 3 = 49.
  const std::vector<float> x{1, -4, 2, 0, 0.5F, -1, 3, 2};
  EXPECT_THAT(ints(encode(*make_codec("topk:k=2,chunk=8,value=fp32"), view(x))),
              ElementsAre(49, 0, 0, 0x80, 0xC0, 0, 0, 0x40, 0x40));
  // fp16 under 2^(2 - 14): -4 is -2^14 = 0xF400, 3 is 0x7200; the exponent byte is 115.
  EXPECT_THAT(ints(encode(*make_codec("topk:k=2,chunk=8,index=u16"), view(x))),
              ElementsAre(115, 1, 0, 6, 0, 0x00, 0xF4, 0x00, 0x72));
  EXPECT_THAT(decode(*make_codec("topk:k=2,chunk=8"),
                     encode(*make_codec("topk:k=2,chunk=8"), view(x)), 8),
              ElementsAre(0, -4, 0, 0, 0, 0, 3, 0));
}

TEST(Topk, KeepsTheLargestAndOfEqualOnesTheFirst) {
  for (const std::size_t k : {1, 3, 17, 64}) {
    for (const std::string kind : {"normal", "plus_one", "ties", "exponents", "denormals"}) {
      const auto codec = make_codec("topk:value=fp32,chunk=64,k=" + std::to_string(k));
      const auto x = make_data(kind, 64);
      std::vector<std::size_t> order(64);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::fabs(x[a]) > std::fabs(x[b]);
      });
      std::vector<float> want(64);
      for (std::size_t i = 0; i < k; ++i) want[order[i]] = x[order[i]] + 0.0F;
      EXPECT_TRUE(same_bits(decode(*codec, encode(*codec, view(x)), 64), want))
          << k << ' ' << kind;
    }
  }
}

TEST(Topk, CostsAreExactAndBookedByContent) {
  // 4096 numbers: 41 places of 12 bits, 41 fp16, an exponent.
  const WireBytes one = make_codec("topk")->wire_bytes(4096);
  EXPECT_EQ(one, (WireBytes{.payload = 82, .scale = 1 + 61, .padding = 1}));
  EXPECT_EQ(make_codec("topk:ratio=0.25,index=u16,value=fp32")->wire_bytes(8192),
            (WireBytes{.payload = 2 * 4096, .scale = 2 * 2048}));
  // A tail keeps its share.
  EXPECT_EQ(make_codec("topk:k=10,chunk=100,value=fp32")->wire_bytes(51).payload, 6U * 4);
}

TEST(Topk, SumsTouchOnlyWhatWasSent) {
  const auto codec = make_codec("topk:k=1,chunk=4,value=fp32");
  const Bytes wire = encode(*codec, view(std::vector<float>{1, 5, 2, 3}));
  std::vector<float> sum{-0.0F, 1, 7, 8};
  codec->decode_add(wire, sum);
  EXPECT_TRUE(same_bits(sum, {-0.0F, 6, 7, 8}));
}

TEST(Topk, PlacesBeyondTheChunkArePassedOver) {
  const auto codec = make_codec("topk:k=1,chunk=100,value=fp32");
  Bytes wire = encode(*codec, view(std::vector<float>(50, 2.0F)));
  wire[0] = std::byte{99};
  EXPECT_EQ(decode(*codec, wire, 50), std::vector<float>(50));
}

TEST(Topk, BadValuesAreRefused) {
  EXPECT_THAT(error_of("topk:k=0"), HasSubstr("1 to 4096"));
  EXPECT_THAT(error_of("topk:k=65,chunk=64"), HasSubstr("1 to 64"));
  EXPECT_THAT(error_of("topk:chunk=65537"), HasSubstr("1 to 65536"));
  EXPECT_THAT(error_of("topk:k=1,ratio=0.1"), HasSubstr("one of"));
  for (const char* bad : {"0", "-0.1", "1.1", "nan", "x", "0.1x"}) {
    EXPECT_THAT(error_of(std::string("topk:ratio=") + bad), HasSubstr("share")) << bad;
  }
}

TEST(Sign, IsTheMeanMagnitudeWithSigns) {
  const auto codec = make_codec("sign:block=4");
  const std::vector<float> x{1, -2, 0, -5, -0.0F, 8};
  const Bytes wire = encode(*codec, view(x));
  EXPECT_THAT(decode(*codec, wire, 6), ElementsAre(2, -2, 2, -2, 4, 4));
  EXPECT_EQ(codec->wire_bytes(6), (WireBytes{.payload = 0, .scale = 8, .padding = 2}));
  EXPECT_EQ(make_codec("sign")->wire_bytes(4096), (WireBytes{.payload = 512, .scale = 8}));
}

TEST(Codebook, CodesDecodeToTheMeansOfTheirBins) {
  const std::size_t n = 5000;
  const auto x = make_data("normal", n);
  const auto codec = make_codec("codebook");
  const Bytes wire = encode(*codec, view(x));
  const auto y = decode(*codec, wire, n);
  double mean = 0, squares = 0;
  for (const float v : x) mean += v;
  mean /= n;
  for (const float v : x) squares += (v - mean) * (v - mean);
  const double step = 6 * std::sqrt(squares / (n - 1)) / 256;
  std::map<int, std::vector<std::size_t>> bins;
  for (std::size_t i = 0; i < n; ++i) {
    const double v = std::nearbyint((x[i] - mean) / step) + 128;
    const int code = static_cast<int>(std::min(std::max(v, 0.0), 255.0));
    ASSERT_EQ(static_cast<int>(wire[1024 + i]), code) << i;
    bins[code].push_back(i);
  }
  EXPECT_GT(bins[0].size() + bins[255].size(), 0U);  // Tails beyond 3 sigma exist.
  for (const auto& [code, members] : bins) {
    double sum = 0;
    for (const std::size_t i : members) sum += x[i];
    for (const std::size_t i : members) {
      ASSERT_EQ(y[i], static_cast<float>(sum / static_cast<double>(members.size()))) << i;
    }
  }
}

TEST(Codebook, CostsATableAChunk) {
  EXPECT_EQ(make_codec("codebook")->wire_bytes(10000),
            (WireBytes{.payload = 10000, .scale = 1024}));
  EXPECT_EQ(make_codec("codebook:block=5000")->wire_bytes(10100),
            (WireBytes{.payload = 10000 + 400, .scale = 2048}));
  // Few numbers travel as they are.
  const auto x = make_data("exponents", 341);
  const auto codec = make_codec("codebook");
  EXPECT_TRUE(same_bits(decode(*codec, encode(*codec, view(x)), 341), x));
}

TEST(Lossless, EveryBitPatternComesBack) {
  for (const Dtype d : {Dtype::kBF16, Dtype::kF16}) {
    Numbers x(d, 65536), y(d, 65536);
    for (std::size_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<std::uint16_t>(i * 40503);
      std::memcpy(static_cast<std::byte*>(x.view().data) + 2 * i, &bits, 2);
    }
    const auto codec = make_codec("lossless");
    codec->decode(encode(*codec, x.view()), y.view());
    EXPECT_TRUE(x.bytes() == y.bytes()) << name(d);  // NaN payloads too.
  }
}

TEST(Lossless, RandomPatternsOfAnyLengthComeBack) {
  const Philox random({.purpose = Purpose::kTest, .tensor = 21});
  const auto codec = make_codec("lossless");
  for (const Dtype d : kDtypes) {
    for (std::size_t n = 1; n < 400; n += 7) {
      for (const std::uint32_t mask : {0xFFFFFFFFU, 0x3F8FFFFFU, 0x00000001U, 0x40404040U}) {
        Numbers x(d, n), y(d, n);
        auto bytes = x.view().as_bytes();
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          bytes[i] = static_cast<std::byte>((random.word(i) & mask) >> (8 * (i % 4)));
        }
        codec->decode(encode(*codec, x.view()), y.view());
        ASSERT_TRUE(x.bytes() == y.bytes()) << name(d) << ' ' << n << ' ' << mask;
      }
    }
  }
}

TEST(Lossless, CastsAreThoseOfThePlainCodecs) {
  const auto x = make_data("exponents", 3000);
  for (const std::string dtype : {"bf16", "fp16", "fp32"}) {
    const auto plain = make_codec(dtype), codec = make_codec("lossless:dtype=" + dtype);
    EXPECT_TRUE(same_bits(decode(*codec, encode(*codec, view(x)), x.size()),
                          decode(*plain, encode(*plain, view(x)), x.size())));
  }
}

TEST(Lossless, ShortensWhatHasFewExponentsAndNothingElse) {
  const auto codec = make_codec("lossless");
  const auto size = [&](const std::string& kind, Dtype d, std::size_t n) {
    const Numbers x(d, make_data(kind, n));
    return static_cast<double>(encode(*codec, x.view()).size()) / static_cast<double>(n);
  };
  EXPECT_EQ(size("zeros", Dtype::kF32, 1000), 0);  // Nothing at all.
  EXPECT_LT(size("normal", Dtype::kBF16, 20000), 1.37);
  EXPECT_LT(size("normal", Dtype::kF16, 20000), 1.70);
  EXPECT_LT(size("normal", Dtype::kF32, 20000), 3.37);
  EXPECT_LT(size("plus_one", Dtype::kBF16, 20000), 1.001);  // One exponent: no codes.
  EXPECT_EQ(encode(*codec, view(std::vector<float>{-0.0F})).size(), 5U);
  // Random bits: the numbers as they are.
  const Philox random({.purpose = Purpose::kTest, .tensor = 22});
  Numbers noise(Dtype::kBF16, 1000);
  for (std::size_t i = 0; i < 2000; ++i) {
    noise.view().as_bytes()[i] = static_cast<std::byte>(random.word(i));
  }
  EXPECT_EQ(encode(*codec, noise.view()).size(), 2001U);
}

TEST(Lossless, DamagedBytesAreAnErrorOrNumbersNeverMore) {
  const Philox random({.purpose = Purpose::kTest, .tensor = 23});
  const auto codec = make_codec("lossless");
  std::size_t refused = 0, taken = 0;
  const auto attempt = [&](const Bytes& wire, Dtype d, std::size_t n) {
    Bytes out(n * size_of(d) + 32, std::byte{0xA5});
    try {
      codec->decode(wire, {out.data() + 16, d, n});
      ++taken;
    } catch (const TransportError&) {
      ++refused;
    }
    for (std::size_t i = 0; i < 16; ++i) {
      ASSERT_EQ(out[i], std::byte{0xA5});
      ASSERT_EQ(out[out.size() - 1 - i], std::byte{0xA5});
    }
  };
  std::uint64_t draw = 0;
  for (const Dtype d : kDtypes) {
    const std::size_t n = 300;
    const Bytes good = encode(*codec, Numbers(d, make_data("normal", n)).view());
    for (std::size_t cut = 0; cut < good.size(); cut += 3) {
      attempt(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(cut)), d, n);
    }
    for (int i = 0; i < 3000; ++i) {
      Bytes bad = good;
      const std::uint32_t word = random.word(draw++);
      // Mostly the front, where the tables are.
      const std::size_t at = word % 4 != 0 ? (word >> 8) % 24 : (word >> 8) % bad.size();
      bad[at] = static_cast<std::byte>(word >> 24);
      attempt(bad, d, n);
    }
    for (int i = 0; i < 3000; ++i) {
      Bytes noise(random.word(draw++) % 700);
      for (std::byte& b : noise) b = static_cast<std::byte>(random.word(draw++));
      if (!noise.empty()) noise[0] = static_cast<std::byte>(random.word(draw++) % 8);
      attempt(noise, d, n);
    }
  }
  EXPECT_GT(refused, 5000U);
  EXPECT_GT(taken, 500U);
}

TEST(PrefixCode, IsShortestAndComplete) {
  // Fibonacci weights are the deepest trees there are: the limit must hold.
  std::array<std::uint64_t, 256> counts{};
  std::uint64_t a = 1, b = 1;
  for (std::size_t s = 0; s < 60; ++s) {
    counts[s] = a;
    std::swap(a, b);
    b += a;
  }
  CodeTable table;
  EXPECT_TRUE(make_code_table(code_lengths(counts), table));
  counts = {};
  counts[3] = 5;
  counts[7] = 1;
  counts[200] = 1;
  const CodeLengths lengths = code_lengths(counts);
  EXPECT_EQ(lengths[3], 1);
  EXPECT_EQ(lengths[7], 2);
  EXPECT_EQ(lengths[200], 2);
  counts.fill(std::uint64_t{1} << 40);
  for (const std::uint8_t bits : code_lengths(counts)) ASSERT_EQ(bits, 8);
  CodeLengths incomplete{};
  incomplete[0] = 1;
  EXPECT_FALSE(make_code_table(incomplete, table));
  incomplete[1] = incomplete[2] = 1;
  EXPECT_FALSE(make_code_table(incomplete, table));
}

}  // namespace
}  // namespace zeropp::quant
