#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/int_block_encode.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "quant/int_block-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

template <Dtype kType, int kBits>
void encode_span(const IntBlockFormat& f, ConstView x, const Philox* noise, std::byte* wire) {
  const auto* in = static_cast<const std::byte*>(x.data);
  std::byte* scale = wire;
  std::byte* payload = wire + f.payload_offset(x.n, 0);
  const std::size_t block_bytes = f.packed(f.block);
  for (std::size_t first = 0; first < x.n; first += f.block) {
    const std::size_t m = std::min(f.block, x.n - first);
    encode_block<kType, kBits>(f, in + first * size_of(kType), m, first, noise, scale, payload);
    scale += IntBlockFormat::kScaleBytes;
    payload += block_bytes;
  }
}

void EncodeBlocks(const IntBlockFormat& f, ConstView x, const Philox* noise, std::byte* wire) {
  with_dtype(x.dtype, [&](auto type) {
    f.bits == 8 ? encode_span<type(), 8>(f, x, noise, wire)
                : encode_span<type(), 4>(f, x, noise, wire);
  });
}

#else

void EncodeBlocks(const IntBlockFormat& f, ConstView x, const Philox* noise, std::byte* wire) {
  reference::encode_blocks(f, x, noise, wire);
}

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(EncodeBlocks);

void encode_blocks(const IntBlockFormat& f, ConstView x, const Philox* noise, std::byte* wire) {
  if (scalar_forced()) return reference::encode_blocks(f, x, noise, wire);
  HWY_DYNAMIC_DISPATCH(EncodeBlocks)(f, x, noise, wire);
}

}  // namespace zeropp::quant
#endif
