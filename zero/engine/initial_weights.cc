#include "zero/engine/initial_weights.h"

#include <algorithm>
#include <array>
#include <span>

#include "quant/convert.h"
#include "quant/rng.h"

namespace zeropp::zero {
namespace {

/// Elements first .. first + out.size() - 1 of the whole tensor.
void generate(const EngineContext& context, std::uint32_t tensor, std::size_t first,
              std::span<float> out) {
  const TensorSpec& spec = context.tensor(tensor);
  if (spec.init != InitKind::kNormal) {
    std::fill(out.begin(), out.end(), spec.init == InitKind::kOnes ? 1.0F : 0.0F);
    return;
  }
  const quant::Philox random(
      {.seed = context.config.seed, .purpose = quant::Purpose::kInit, .tensor = tensor});
  const auto std = static_cast<float>(spec.init_std);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = random.normal(first + i) * std;
}

}  // namespace

void initial_weights(const EngineContext& context, std::uint32_t tensor, int modulus,
                     quant::MutView out) {
  constexpr std::size_t kSlice = 4096;
  std::array<float, kSlice> slice;
  for (const auto& p :
       hierarchy::shard_pieces(context.chunks(tensor), modulus, context.rank())) {
    for (std::size_t at = 0; at < p.size; at += kSlice) {
      const auto part = std::span(slice).first(std::min(kSlice, p.size - at));
      generate(context, tensor, p.global + at, part);
      quant::convert(quant::view(part), out.slice(p.local + at, part.size()));
    }
  }
}

}  // namespace zeropp::zero
