#include "zero/engine/context.h"

#include "quant/convert.h"

namespace zeropp::zero {

void narrow_shard(const EngineContext& context, std::uint32_t tensor, quant::ConstView src,
                  int from, quant::MutView dst, int to) {
  for_each_piece(context, tensor, from, to, [&](const auto& outer, const auto& inner) {
    quant::convert(src.slice(outer.local, outer.size), dst.slice(inner.local, inner.size));
  });
}

}  // namespace zeropp::zero
