#pragma once

#include <array>
#include <cstdint>

namespace zeropp::quant {

/// What a random number is for; part of its key, so purposes never share numbers.
enum class Purpose : std::uint8_t {
  kInit = 0,
  kData = 1,
  kRounding = 2,
  kRotation = 3,
  kShared = 4,             ///< Equal on all ranks (sender is not part of the key).
  kWeightRounding = 5,     ///< Versions of weights share numbers with steps of gradients.
  kSecondHopRounding = 6,  ///< CodecContext::second_hop.
  kTest = 7,
};

/// Identity of a random value: never call order, always what the value is.
/// Limits (UsageError beyond): tensor < 2^16, step < 2^32, micro < 2^10, sender and part <
/// 2^14, level < 2^3.
struct RandomKey {
  std::uint64_t seed = 0;
  Purpose purpose = Purpose::kTest;
  std::uint32_t tensor = 0;
  std::uint64_t step = 0;    ///< Step, or version of the weights.
  std::uint32_t micro = 0;   ///< Micro-step.
  std::uint32_t sender = 0;  ///< World rank of the encoder.
  std::uint32_t part = 0;    ///< World chunk.
  std::uint32_t level = 0;
};

/// Philox4x32-10 (Salmon et al., SC 2011). One block = four 32-bit words.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// A stream of random words for one key. Element e reads word e % 4 of block e / 4.
/// Key = seed; counter = (element block: 36 bits | tensor 16 | step 32 | micro 10 | sender 14 |
/// level 3 | part 14 | purpose 3) = 128 bits, a packing without collisions.
class Philox {
 public:
  explicit Philox(const RandomKey& key);
  /// Block of four words for elements 4*block .. 4*block+3. block < 2^36.
  std::array<std::uint32_t, 4> block(std::uint64_t block) const;
  std::uint32_t word(std::uint64_t element) const { return block(element / 4)[element % 4]; }
  /// Uniform in [0, 1) with 24 bits: word >> 8 times 2^-24 (never rounds to 1).
  float uniform(std::uint64_t element) const {
    return static_cast<float>(word(element) >> 8) * 0x1p-24F;
  }
  /// Standard normal by Box-Muller on words of one block, in double, rounded once.
  float normal(std::uint64_t element) const;
  const std::array<std::uint32_t, 4>& counter_base() const { return base_; }
  const std::array<std::uint32_t, 2>& key() const { return key_; }

 private:
  std::array<std::uint32_t, 4> base_;  ///< Counter at block 0.
  std::array<std::uint32_t, 2> key_;
};

}  // namespace zeropp::quant
