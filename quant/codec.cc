#include "quant/codec.h"

#include "quant/convert.h"
#include "quant/error.h"
#include "quant/memory.h"

namespace zeropp::quant {
namespace {

Tensor scratch(std::size_t n) { return {nullptr, MemoryKind::kWorkspace, Dtype::kF32, n}; }

}  // namespace

std::string_view name(Role role) {
  switch (role) {
    case Role::kWeight:
      return "weight";
    case Role::kGradient:
      return "gradient";
    case Role::kOptimizer:
      return "optimizer";
    case Role::kScalar:
      return "scalar";
    case Role::kControl:
      return "control";
  }
  return "?";
}

void Codec::decode_add(std::span<const std::byte> wire, std::span<float> sum) const {
  Tensor x = scratch(sum.size());
  decode(wire, x.view());
  accumulate(mut_view(sum), x.view());
}

void Codec::decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                       MutView out) const {
  if (wires.empty()) throw UsageError("decode_sum", "at least one source", "none");
  Tensor sum = scratch(out.n);
  decode(wires[0], sum.view());
  for (const auto& wire : wires.subspan(1)) decode_add(wire, {sum.f32(), out.n});
  divide(sum.view(), divisor, out);  // By 1 too: it changes nothing but makes NaN canonical.
}

void Codec::decode_with(std::span<const std::byte> wire, const CodecContext& ctx,
                        MutView out) const {
  static_cast<void>(ctx);
  decode(wire, out);
}

void Codec::decode_sum_with(std::span<const std::span<const std::byte>> wires, float divisor,
                            const CodecContext& ctx, MutView out) const {
  static_cast<void>(ctx);
  decode_sum(wires, divisor, out);
}

std::size_t Codec::reduce_encode(const Codec& from,
                                 std::span<const std::span<const std::byte>> wires,
                                 std::size_t n, float divisor, const CodecContext& ctx,
                                 std::span<std::byte> wire) const {
  Tensor sum = scratch(n);
  from.decode_sum(wires, divisor, sum.view());
  return encode(sum.view(), ctx, wire);
}

}  // namespace zeropp::quant
