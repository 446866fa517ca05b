#include "quant/int_block.h"

#include <algorithm>
#include <array>

#include "quant/convert.h"
#include "quant/memory.h"
#include "quant/reference.h"
#include "quant/simd.h"

namespace zeropp::quant {
namespace {

Tensor scratch(std::size_t n) { return {nullptr, MemoryKind::kWorkspace, Dtype::kF32, n}; }

}  // namespace

void encode_blocks(const IntBlockFormat& f, ConstView x, const Philox* noise, std::byte* wire) {
  reference::encode_blocks(f, x, noise, wire);
}

void decode_blocks(const IntBlockFormat& f, const std::byte* wire, MutView out) {
  reference::decode_blocks(f, wire, out);
}

void decode_add_blocks(const IntBlockFormat& f, const std::byte* wire, std::span<float> sum) {
  Tensor x = scratch(sum.size());
  decode_blocks(f, wire, x.view());
  accumulate(mut_view(sum), x.view());
}

void decode_sum_blocks(const IntBlockFormat& f, WireList wires, float divisor, MutView out) {
  Tensor sum = scratch(out.n);
  decode_blocks(f, wires[0].data(), sum.view());
  for (const auto& wire : wires.subspan(1)) {
    decode_add_blocks(f, wire.data(), {sum.f32(), out.n});
  }
  if (divisor == 1.0F) {
    convert(sum.view(), out);
  } else {
    divide(sum.view(), divisor, out);
  }
}

void reduce_encode_blocks(const IntBlockFormat& from, WireList wires, std::size_t n,
                          float divisor, const IntBlockFormat& to, const Philox* noise,
                          std::byte* wire) {
  Tensor sum = scratch(n);
  decode_sum_blocks(from, wires, divisor, sum.view());
  encode_blocks(to, sum.view(), noise, wire);
}

}  // namespace zeropp::quant
