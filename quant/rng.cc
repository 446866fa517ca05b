#include "quant/rng.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "quant/error.h"

namespace zeropp::quant {
namespace {

constexpr std::uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

// Bit positions in the 128-bit counter, least significant first.
constexpr int kBlockBits = 36, kTensorBits = 16, kStepBits = 32, kMicroBits = 10;
constexpr int kSenderBits = 14, kLevelBits = 3, kPartBits = 14, kPurposeBits = 3;
static_assert(kBlockBits + kTensorBits + kStepBits + kMicroBits + kSenderBits + kLevelBits +
                  kPartBits + kPurposeBits ==
              128);

class CounterPacker {
 public:
  void skip(int bits) { at_ += bits; }
  void put(const char* what, std::uint64_t value, int bits) {
    if (value >> bits != 0) {
      throw UsageError("random key", std::string(what) + " < 2^" + std::to_string(bits),
                       std::to_string(value));
    }
    for (int done = 0; done < bits;) {
      const int word = at_ / 32, shift = at_ % 32;
      words_[static_cast<std::size_t>(word)] |=
          static_cast<std::uint32_t>((value >> done) << shift);
      const int step = std::min(bits - done, 32 - shift);
      done += step;
      at_ += step;
    }
  }
  const std::array<std::uint32_t, 4>& words() const { return words_; }

 private:
  std::array<std::uint32_t, 4> words_{};
  int at_ = 0;
};

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c,
                                        std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kMul0) * c[0];
    const std::uint64_t p1 = static_cast<std::uint64_t>(kMul1) * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += kWeyl0;
    k[1] += kWeyl1;
  }
  return c;
}

Philox::Philox(const RandomKey& key)
    : key_{static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)} {
  CounterPacker counter;
  counter.skip(kBlockBits);
  counter.put("tensor", key.tensor, kTensorBits);
  counter.put("step", key.step, kStepBits);
  counter.put("micro", key.micro, kMicroBits);
  counter.put("sender", key.purpose == Purpose::kShared ? 0 : key.sender, kSenderBits);
  counter.put("level", key.level, kLevelBits);
  counter.put("part", key.part, kPartBits);
  counter.put("purpose", static_cast<std::uint64_t>(key.purpose), kPurposeBits);
  base_ = counter.words();
}

std::array<std::uint32_t, 4> Philox::block(std::uint64_t block) const {
  auto counter = base_;
  counter[0] = static_cast<std::uint32_t>(block);
  counter[1] |= static_cast<std::uint32_t>(block >> 32) & 0xF;
  return philox4x32(counter, key_);
}

float Philox::normal(std::uint64_t element) const {
  const auto words = block(element / 4);
  const std::size_t pair = element % 4 / 2 * 2;
  const double u = (static_cast<double>(words[pair]) + 1) * 0x1p-32;  // (0, 1]: log is finite.
  const double v = static_cast<double>(words[pair + 1]) * 0x1p-32;
  const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * v;
  return static_cast<float>(element % 2 == 0 ? radius * std::cos(angle)
                                             : radius * std::sin(angle));
}

}  // namespace zeropp::quant
