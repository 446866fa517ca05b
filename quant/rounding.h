#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quant/codec.h"
#include "quant/rng.h"

namespace zeropp::quant {

/// How codecs round what lies between two values of their format.
enum class Rounding : std::uint8_t {
  kNearest,     ///< Ties to even.
  kStochastic,  ///< Up if u < the distance to the lower one, u uniform: unbiased.
  /// The same, with u of the group's members spread evenly over [0, 1): unbiased, and the
  /// errors of close numbers cancel in the members' mean (Suresh et al., Correlated
  /// Quantization, 2022).
  kCorrelated,
  /// Nearest on a lattice that a random offset shifts, the same for all senders (Markov et al.,
  /// Quantized Distributed Training, 2023).
  kShift,
};

constexpr bool draws(Rounding r) {
  return r == Rounding::kStochastic || r == Rounding::kCorrelated;
}
Rounding parse_rounding(std::string_view word);  ///< One of the four, checked by choice_arg.
std::string_view name(Rounding r);

/// The random numbers that rounding one span takes, keyed by what the span is.
///
/// u of number e is 2^-24 times a 24-bit integer. Of the own stream (keyed with the sender), W,
/// it is W(e) >> 8. Correlated, member i of n takes floor((p * 2^24 + (W(e) >> 8)) / n) with
///   p = (pi(i) + floor(S(e) * n / 2^32)) mod n,
/// S the group's shared stream and pi a random permutation, one for 128 numbers: pi(i) is the
/// rank of S(2^37 + (e / 128) * n + i) among those of all i, the lower i first where equal.
/// Each p is uniform, and no two members have the same. Spans are shorter than 2^35 numbers.
class RoundingNoise {
 public:
  RoundingNoise(Rounding rounding, const CodecContext& ctx);

  const Philox& own() const { return own_; }
  bool correlated() const { return size_ > 1; }

  /// u of number `element`.
  float uniform(std::uint64_t element) const;

  /// Makes own words of numbers first .. first + count words whose upper 24 bits are u.
  void correlate(std::uint64_t first, std::size_t count, std::uint32_t* words) const;

  /// In [0, 1), of a block of the span, for kShift: shared by all senders.
  double shift(std::uint64_t block) const;

 private:
  static constexpr std::uint64_t kRun = 128;
  std::uint32_t shared(std::uint64_t element) const {
    return shared_.word(shared_base_ + element);
  }
  std::uint32_t permuted(std::uint64_t run) const;

  Philox own_, shared_;
  std::uint64_t shared_base_;
  std::uint32_t size_, index_;
};

}  // namespace zeropp::quant
