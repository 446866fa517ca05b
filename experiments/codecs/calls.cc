#include "experiments/codecs/calls.h"

#include "quant/codec_state.h"
#include "quant/memory.h"

namespace zeropp::experiments {
namespace {

/// A context with a state, its own or a fresh one.
class WithState {
 public:
  explicit WithState(const quant::CodecContext& ctx) : ctx_(ctx) {
    if (ctx_.state == nullptr) ctx_.state = &fresh_;
  }
  const quant::CodecContext& context() const { return ctx_; }

 private:
  quant::CodecState fresh_;
  quant::CodecContext ctx_;
};

}  // namespace

std::size_t call_encode(const quant::Codec& codec, quant::ConstView x, quant::CodecContext ctx,
                        std::span<std::byte> wire) {
  return codec.encode(x, WithState(ctx).context(), wire);
}

void call_decode(const quant::Codec& codec, std::span<const std::byte> wire,
                 quant::CodecContext ctx, quant::MutView out) {
  if (!codec.traits().receiver_state) return codec.decode(wire, out);
  codec.decode_with(wire, WithState(ctx).context(), out);
}

void call_decode_sum(const quant::Codec& codec,
                     std::span<const std::span<const std::byte>> wires, float divisor,
                     quant::CodecContext ctx, quant::MutView out) {
  if (!codec.traits().receiver_state) return codec.decode_sum(wires, divisor, out);
  codec.decode_sum_with(wires, divisor, WithState(ctx).context(), out);
}

std::size_t call_reduce_encode(const quant::Codec& codec,
                               std::span<const std::span<const std::byte>> wires, std::size_t n,
                               float divisor, quant::CodecContext ctx,
                               std::span<std::byte> wire) {
  const WithState with(ctx);
  if (!codec.traits().receiver_state) {
    return codec.reduce_encode(codec.decoder(), wires, n, divisor, with.context(), wire);
  }
  quant::Tensor sum(nullptr, quant::MemoryKind::kHost, quant::Dtype::kF32, n);
  codec.decode_sum_with(wires, divisor, with.context(), sum.view());
  return codec.encode(sum.view(), with.context(), wire);
}

}  // namespace zeropp::experiments
