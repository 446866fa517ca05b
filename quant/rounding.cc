#include "quant/rounding.h"

#include "quant/builtin_codecs.h"

namespace zeropp::quant {
namespace {

// The shared stream has no purpose of its own for weights and second hops: they take other
// parts of it.
constexpr std::uint64_t kOrder = std::uint64_t{1} << 37;
constexpr std::uint64_t kSecondHop = std::uint64_t{1} << 36;
constexpr std::uint64_t kWeights = std::uint64_t{1} << 35;

Philox shared_noise(const CodecContext& ctx) {
  return Philox({.seed = ctx.seed,
                 .purpose = Purpose::kShared,
                 .tensor = ctx.tensor,
                 .step = ctx.step,
                 .micro = ctx.micro,
                 .part = ctx.part,
                 .level = ctx.level});
}

}  // namespace

Rounding parse_rounding(std::string_view word) {
  for (const Rounding r : {Rounding::kStochastic, Rounding::kCorrelated, Rounding::kShift}) {
    if (word == name(r)) return r;
  }
  return Rounding::kNearest;
}

std::string_view name(Rounding r) {
  switch (r) {
    case Rounding::kStochastic:
      return "stochastic";
    case Rounding::kCorrelated:
      return "correlated";
    case Rounding::kShift:
      return "shift";
    case Rounding::kNearest:
      break;
  }
  return "nearest";
}

Philox rounding_noise(const CodecContext& ctx) {
  const Purpose purpose = ctx.role == Role::kWeight ? Purpose::kWeightRounding
                          : ctx.second_hop          ? Purpose::kSecondHopRounding
                                                    : Purpose::kRounding;
  return Philox({.seed = ctx.seed,
                 .purpose = purpose,
                 .tensor = ctx.tensor,
                 .step = ctx.step,
                 .micro = ctx.micro,
                 .sender = ctx.sender,
                 .part = ctx.part,
                 .level = ctx.level});
}

RoundingNoise::RoundingNoise(Rounding rounding, const CodecContext& ctx)
    : own_(rounding_noise(ctx)),
      shared_(shared_noise(ctx)),
      shared_base_((ctx.second_hop ? kSecondHop : 0) +
                   (ctx.role == Role::kWeight ? kWeights : 0)),
      size_(rounding == Rounding::kCorrelated ? ctx.group_size : 1),
      index_(ctx.group_index) {}

std::uint32_t RoundingNoise::permuted(std::uint64_t run) const {
  const std::uint64_t base = kOrder + run * size_;
  const std::uint32_t mine = shared(base + index_);
  std::uint32_t before = 0;
  for (std::uint32_t j = 0; j < size_; ++j) {
    const std::uint32_t other = shared(base + j);
    before += other < mine || (other == mine && j < index_) ? 1 : 0;
  }
  return before;
}

void RoundingNoise::correlate(std::uint64_t first, std::size_t count,
                              std::uint32_t* words) const {
  std::uint64_t run = ~std::uint64_t{0};
  std::uint32_t place = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t element = first + i;
    if (element / kRun != run) {
      run = element / kRun;
      place = permuted(run);
    }
    const std::uint64_t turn = std::uint64_t{shared(element)} * size_ >> 32;
    const std::uint64_t p = (place + turn) % size_;
    words[i] = static_cast<std::uint32_t>(((p << 24) + (words[i] >> 8)) / size_) << 8;
  }
}

float RoundingNoise::uniform(std::uint64_t element) const {
  std::uint32_t word = own_.word(element);
  if (correlated()) correlate(element, 1, &word);
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

double RoundingNoise::shift(std::uint64_t block) const {
  return shared(kOrder + block) * 0x1p-32;
}

}  // namespace zeropp::quant
