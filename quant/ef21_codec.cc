// EF21 (Richtarik et al., NeurIPS 2021): sender and receivers keep h, an estimate of the
// number; what travels is Q(x - h), and both add it:  h = h + Q(x - h). What is decoded is h.
//
// Receivers keep one h a source, not the sum of the paper, so that they hold to the bit what
// senders hold: sums of rounded updates would drift away from it for ever.

#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/codec_state.h"
#include "quant/convert.h"
#include "quant/decorator.h"
#include "quant/error.h"

namespace zeropp::quant {
namespace {

class Ef21Codec final : public DecoratorCodec {
 public:
  explicit Ef21Codec(CodecPtr behind) : DecoratorCodec("ef21", std::move(behind)) {}

  CodecTraits traits() const override {
    CodecTraits t = inner_traits();
    t.stateful = t.receiver_state = true;
    t.unbiased = t.sums_transformed = false;
    return t;
  }

  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    check_wire("encode", wire.size(), max_wire_size(x.n));
    Residual& residual = state_of(ctx).residual(ResidualKey::of(ctx, spec()), x.n, {});
    const float scale = ctx.state->scale(ctx.role);
    Tensor room, difference = scratch(x.n);
    const float* h = residual.read(room);
    convert(x, difference.view());
    float* d = difference.f32();
    for (std::size_t i = 0; i < x.n; ++i) d[i] -= h[i] * scale;
    const std::size_t bytes = inner().encode(difference.view(), ctx, wire);
    advance(residual, wire.first(bytes), scale);
    return bytes;
  }

  void decode(std::span<const std::byte>, MutView) const override {
    throw UsageError(spec(), "a call with a context: receivers keep state", "decode");
  }
  void decode_with(std::span<const std::byte> wire, const CodecContext& ctx,
                   MutView out) const override {
    const Tensor h = receive(wire, ctx, 0, out.n);
    convert(h.view(), out);
  }
  void decode_sum_with(std::span<const std::span<const std::byte>> wires, float divisor,
                       const CodecContext& ctx, MutView out) const override {
    if (wires.empty()) throw UsageError(spec(), "at least one source", "none");
    Tensor sum = receive(wires[0], ctx, 0, out.n);
    for (std::size_t s = 1; s < wires.size(); ++s) {
      const Tensor h = receive(wires[s], ctx, static_cast<std::uint32_t>(s), out.n);
      accumulate(sum.view(), h.view());
    }
    divide(sum.view(), divisor, out);
  }

 private:
  CodecState& state_of(const CodecContext& ctx) const {
    if (ctx.state == nullptr) throw UsageError(spec(), "a state in the context", "none");
    return *ctx.state;
  }
  /// h = h + Q / scale, the same operations at both ends. Returns the new h times scale.
  Tensor advance(Residual& residual, std::span<const std::byte> wire, float scale) const {
    const std::size_t n = residual.size();
    Tensor room, next = scratch(n);
    const float* h = residual.read(room);
    inner().decode(wire, next.view());
    float* q = next.f32();
    for (std::size_t i = 0; i < n; ++i) q[i] = h[i] + q[i] / scale;
    residual.write(q);
    for (std::size_t i = 0; i < n; ++i) q[i] *= scale;
    return next;
  }
  Tensor receive(std::span<const std::byte> wire, const CodecContext& ctx, std::uint32_t source,
                 std::size_t n) const {
    ResidualKey key = ResidualKey::of(ctx, spec());
    key.receiver = true;
    key.source = source;
    CodecState& state = state_of(ctx);
    return advance(state.residual(key, n, {}), wire, state.scale(ctx.role));
  }
};

}  // namespace

std::vector<CodecEntry> ef21_codecs() {
  return {{.name = "ef21",
           .help = "sends the difference to what receivers hold, which both update",
           .params = {},
           .examples = {"ef21|int4:block=32"},
           .make = {},
           .decorate = [](const CodecSpec& spec, CodecPtr inner) -> CodecPtr {
             refuse_state(spec.name, *inner);
             return std::make_shared<const Ef21Codec>(std::move(inner));
           }}};
}

}  // namespace zeropp::quant
