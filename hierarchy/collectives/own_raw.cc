#include "hierarchy/collectives/own_raw.h"

#include "quant/convert.h"

namespace zeropp::hierarchy::detail {

quant::MutView OwnRaw::sum(const quant::Codec& codec,
                           std::span<const std::span<const std::byte>> wires,
                           std::size_t own_source, quant::ConstView own, float divisor,
                           std::size_t n) {
  sum_.resize(n);
  term_.resize(n);
  for (std::size_t s = 0; s < wires.size(); ++s) {
    std::vector<float>& to = s == 0 ? sum_ : term_;
    if (s == own_source) {
      quant::convert(own, quant::mut_view(to));
    } else {
      codec.decode(wires[s], quant::mut_view(to));
    }
    if (s > 0) quant::accumulate(quant::mut_view(sum_), quant::view(term_));
  }
  quant::divide(quant::view(sum_), divisor, quant::mut_view(sum_));
  return quant::mut_view(sum_);
}

void OwnRaw::keep(std::uint32_t tensor, int chunk, quant::ConstView sum) {
  std::vector<float>& kept = kept_[{tensor, chunk}];
  kept.resize(sum.n);
  quant::convert(sum, quant::mut_view(kept));
}

quant::ConstView OwnRaw::find(std::uint32_t tensor, int chunk) const {
  const auto found = kept_.find({tensor, chunk});
  return found == kept_.end() ? quant::ConstView{} : quant::view(found->second);
}

}  // namespace zeropp::hierarchy::detail
