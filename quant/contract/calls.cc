#include "quant/contract/calls.h"

#include "quant/codec_state.h"
#include "quant/memory.h"

namespace zeropp::quant::contract {
namespace {

/// A context with a state, its own or a fresh one.
class WithState {
 public:
  explicit WithState(const CodecContext& ctx) : ctx_(ctx) {
    if (ctx_.state == nullptr) ctx_.state = &fresh_;
  }
  const CodecContext& context() const { return ctx_; }

 private:
  CodecState fresh_;
  CodecContext ctx_;
};

}  // namespace

std::size_t call_encode(const Codec& codec, ConstView x, CodecContext ctx,
                        std::span<std::byte> wire) {
  return codec.encode(x, WithState(ctx).context(), wire);
}

void call_decode(const Codec& codec, std::span<const std::byte> wire, CodecContext ctx,
                 MutView out) {
  if (!codec.traits().receiver_state) return codec.decode(wire, out);
  codec.decode_with(wire, WithState(ctx).context(), out);
}

void call_decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> wires,
                     float divisor, CodecContext ctx, MutView out) {
  if (!codec.traits().receiver_state) return codec.decode_sum(wires, divisor, out);
  codec.decode_sum_with(wires, divisor, WithState(ctx).context(), out);
}

std::size_t call_reduce_encode(const Codec& to, const Codec& from,
                               std::span<const std::span<const std::byte>> wires, std::size_t n,
                               float divisor, CodecContext ctx, std::span<std::byte> wire) {
  const WithState with(ctx);
  if (!from.traits().receiver_state) {
    return to.reduce_encode(from.decoder(), wires, n, divisor, with.context(), wire);
  }
  Tensor sum(nullptr, MemoryKind::kHost, Dtype::kF32, n);
  from.decode_sum_with(wires, divisor, with.context(), sum.view());
  return to.encode(sum.view(), with.context(), wire);
}

}  // namespace zeropp::quant::contract
