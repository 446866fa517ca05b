#include "quant/convert.h"
#include "zero/ops/ops.h"

namespace zeropp::zero::ops {

using quant::ConstView;
using quant::Dtype;
using quant::MutView;

void embedding_forward(const EmbeddingShape& shape, std::span<const std::int32_t> tokens,
                       ConstView token, ConstView position, MutView x) {
  const std::size_t width = shape.width;
  for (std::size_t i = 0; i < shape.batch * shape.seq; ++i) {
    const MutView row = x.slice(i * width, width);
    convert(token.slice(static_cast<std::size_t>(tokens[i]) * width, width), row);
    accumulate(row, position.slice(i % shape.seq * width, width));
  }
}

void embedding_backward(Context& ctx, const EmbeddingShape& shape,
                        std::span<const std::int32_t> tokens, ConstView dx,
                        std::span<float> dtoken, MutView dposition) {
  const std::size_t width = shape.width;
  for (std::size_t i = 0; i < shape.batch * shape.seq; ++i) {
    const auto row = static_cast<std::size_t>(tokens[i]) * width;
    accumulate(quant::mut_view(dtoken.subspan(row, width)), dx.slice(i * width, width));
  }
  const MutView sum = ctx.scratch(Slot::kSums, Dtype::kF32, width);
  for (std::size_t t = 0; t < shape.context; ++t) {
    const std::size_t used = t < shape.seq ? shape.batch : 0;
    for (std::byte& b : sum.as_bytes()) b = std::byte{0};
    for (std::size_t b = 0; b < used; ++b) {
      accumulate(sum, dx.slice((b * shape.seq + t) * width, width));
    }
    convert(sum, dposition.slice(t * width, width));
  }
}

}  // namespace zeropp::zero::ops
