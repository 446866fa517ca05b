#include "quant/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include "quant/error.h"

namespace zeropp::quant {
namespace {

using Block = std::array<std::uint32_t, 4>;

// Random123, tests/kat_vectors, philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  const std::uint32_t ones = 0xFFFFFFFF;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Block{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(
      philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
      (Block{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

const RandomKey kBase{.seed = 5,
                      .purpose = Purpose::kRounding,
                      .tensor = 3,
                      .step = 7,
                      .micro = 1,
                      .sender = 2,
                      .part = 4,
                      .level = 1};

/// Every field, at every bit it may use.
std::vector<RandomKey> one_bit_keys() {
  std::vector<RandomKey> keys{{.purpose = Purpose::kInit}};
  const auto add = [&](int bits, const std::function<void(RandomKey&, std::uint64_t)>& set) {
    for (int b = 0; b < bits; ++b) {
      RandomKey key{.purpose = Purpose::kInit};
      set(key, std::uint64_t{1} << b);
      keys.push_back(key);
    }
  };
  add(16, [](RandomKey& k, std::uint64_t v) { k.tensor = static_cast<std::uint32_t>(v); });
  add(32, [](RandomKey& k, std::uint64_t v) { k.step = v; });
  add(10, [](RandomKey& k, std::uint64_t v) { k.micro = static_cast<std::uint32_t>(v); });
  add(14, [](RandomKey& k, std::uint64_t v) { k.sender = static_cast<std::uint32_t>(v); });
  add(14, [](RandomKey& k, std::uint64_t v) { k.part = static_cast<std::uint32_t>(v); });
  add(3, [](RandomKey& k, std::uint64_t v) { k.level = static_cast<std::uint32_t>(v); });
  add(64, [](RandomKey& k, std::uint64_t v) { k.seed = v; });
  for (const Purpose p :
       {Purpose::kWeightRounding, Purpose::kSecondHopRounding, Purpose::kData,
        Purpose::kRounding, Purpose::kRotation, Purpose::kShared, Purpose::kTest}) {
    keys.push_back({.purpose = p});
  }
  return keys;
}

TEST(RandomKeys, PackWithoutCollision) {
  // Every field owns its bits: single-bit keys differ from each other in disjoint bits, so any
  // two keys differ. The low 36 bits stay free for the element block.
  std::set<std::pair<Block, std::array<std::uint32_t, 2>>> seen;
  Block used{0xFFFFFFFF, 0xF, 0, 0};
  for (const RandomKey& key : one_bit_keys()) {
    const Philox p(key);
    EXPECT_TRUE(seen.emplace(p.counter_base(), p.key()).second);
    if (key.purpose != Purpose::kInit) continue;
    for (std::size_t w = 0; w < 4; ++w) {
      EXPECT_EQ(p.counter_base()[w] & used[w], 0U);
      used[w] |= p.counter_base()[w];
    }
  }
  EXPECT_EQ(used, (Block{0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0x1FFFFFFF}));  // + purpose.
}

TEST(RandomKeys, LimitsAreErrorsNotWrapAround) {
  const auto with = [](auto set) {
    RandomKey key = kBase;
    set(key);
    return key;
  };
  EXPECT_NO_THROW(Philox(with([](RandomKey& k) {
    k.tensor = (1 << 16) - 1;
    k.step = (1ULL << 32) - 1;
    k.micro = (1 << 10) - 1;
    k.sender = k.part = (1 << 14) - 1;
    k.level = 7;
  })));
  EXPECT_THROW(Philox(with([](RandomKey& k) { k.tensor = 1 << 16; })), UsageError);
  EXPECT_THROW(Philox(with([](RandomKey& k) { k.step = 1ULL << 32; })), UsageError);
  EXPECT_THROW(Philox(with([](RandomKey& k) { k.micro = 1 << 10; })), UsageError);
  EXPECT_THROW(Philox(with([](RandomKey& k) { k.sender = 1 << 14; })), UsageError);
  EXPECT_THROW(Philox(with([](RandomKey& k) { k.part = 1 << 14; })), UsageError);
  EXPECT_THROW(Philox(with([](RandomKey& k) { k.level = 8; })), UsageError);
}

TEST(RandomKeys, SharedNumbersDoNotDependOnTheSender) {
  RandomKey a{.purpose = Purpose::kShared, .sender = 1}, b = a;
  b.sender = 2;
  EXPECT_EQ(Philox(a).block(9), Philox(b).block(9));
  a.purpose = b.purpose = Purpose::kRounding;
  EXPECT_NE(Philox(a).block(9), Philox(b).block(9));
}

TEST(Philox, BlocksUse36Bits) {
  const Philox p(kBase);
  std::set<Block> seen;
  for (int b = 0; b < 36; ++b) seen.insert(p.block(std::uint64_t{1} << b));
  seen.insert(p.block(0));
  EXPECT_EQ(seen.size(), 37U);
  EXPECT_EQ(p.word(4 * 77 + 2), p.block(77)[2]);
}

TEST(Philox, UniformsAreUniform) {
  constexpr int kBins = 64, kDraws = 64 * 4096;
  int count[kBins] = {};
  const Philox p(kBase);
  double low = 1, high = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const float u = p.uniform(i);
    low = std::min<double>(low, u);
    high = std::max<double>(high, u);
    ++count[static_cast<int>(u * kBins)];
  }
  EXPECT_GE(low, 0);
  EXPECT_LT(high, 1);
  double chi = 0;
  for (const int c : count) chi += (c - 4096.0) * (c - 4096.0) / 4096.0;
  EXPECT_LT(chi, 63 + 5 * std::sqrt(2 * 63.0));  // 5 sigma of chi-square with 63 degrees.
  EXPECT_GT(chi, 63 - 5 * std::sqrt(2 * 63.0));
}

TEST(Philox, TopUniformIsBelowOne) {
  EXPECT_LT(static_cast<float>(0xFFFFFFFFU >> 8) * 0x1p-24F, 1.0F);
}

TEST(Philox, NormalsHaveTheMoments) {
  constexpr int kDraws = 1 << 18;
  const Philox p(kBase);
  double m1 = 0, m2 = 0, m4 = 0, neighbours = 0;
  float last = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const float z = p.normal(i);
    ASSERT_TRUE(std::isfinite(z));
    m1 += z;
    m2 += static_cast<double>(z) * z;
    m4 += std::pow(z, 4);
    neighbours += static_cast<double>(z) * last;
    last = z;
  }
  const double sigma = 1 / std::sqrt(kDraws);
  EXPECT_LT(std::fabs(m1 / kDraws), 5 * sigma);
  EXPECT_LT(std::fabs(m2 / kDraws - 1), 5 * std::sqrt(2.0) * sigma);
  EXPECT_LT(std::fabs(m4 / kDraws - 3), 5 * std::sqrt(96.0) * sigma);
  EXPECT_LT(std::fabs(neighbours / kDraws), 5 * sigma);
}

double correlation(const RandomKey& a, const RandomKey& b) {
  constexpr int kDraws = 1 << 16;
  const Philox p(a), q(b);
  double sum = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) sum += (p.uniform(i) - 0.5) * (q.uniform(i) - 0.5);
  return sum / kDraws * 12;
}

TEST(Philox, RanksTensorsStepsAndSeedsAreUncorrelated) {
  const auto vary = [](auto set) {
    RandomKey key = kBase;
    set(key);
    return key;
  };
  const RandomKey others[] = {
      vary([](RandomKey& k) { k.seed ^= 1; }),
      vary([](RandomKey& k) { k.tensor += 1; }),
      vary([](RandomKey& k) { k.step += 1; }),
      vary([](RandomKey& k) { k.micro += 1; }),
      vary([](RandomKey& k) { k.sender += 1; }),
      vary([](RandomKey& k) { k.part += 1; }),
      vary([](RandomKey& k) { k.level += 1; }),
      vary([](RandomKey& k) { k.seed = 0; }),
      vary([](RandomKey& k) { k.purpose = Purpose::kTest; }),
  };
  EXPECT_NEAR(correlation(kBase, kBase), 1, 0.02);
  for (const RandomKey& other : others) {
    EXPECT_LT(std::fabs(correlation(kBase, other)), 5 / 256.0);  // 5 sigma of 2^16 draws.
  }
}

}  // namespace
}  // namespace zeropp::quant
