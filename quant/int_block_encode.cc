#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/int_block_encode.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "quant/int_block_encode-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

template <Dtype kType, int kBits, Mode kMode>
void encode_span(const IntBlockFormat& f, ConstView x, const RoundingNoise* noise,
                 std::byte* wire) {
  encode_all<kType, kBits, kMode>(Encoder(f, noise), static_cast<const std::byte*>(x.data), x.n,
                                  0, wire, wire + f.payload_offset(x.n, 0));
}

void EncodeBlocks(const IntBlockFormat& f, ConstView x, const RoundingNoise* noise,
                  std::byte* wire) {
  with_dtype(x.dtype, [&](auto type) {
    with_mode(f, [&](auto mode) {
      f.bits == 8 ? encode_span<type(), 8, mode()>(f, x, noise, wire)
                  : encode_span<type(), 4, mode()>(f, x, noise, wire);
    });
  });
}

#else

void EncodeBlocks(const IntBlockFormat& f, ConstView x, const RoundingNoise* noise,
                  std::byte* wire) {
  reference::encode_blocks(f, x, noise, wire);
}

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(EncodeBlocks);

void encode_blocks(const IntBlockFormat& f, ConstView x, const RoundingNoise* noise,
                   std::byte* wire) {
  if (scalar_forced()) return reference::encode_blocks(f, x, noise, wire);
  HWY_DYNAMIC_DISPATCH(EncodeBlocks)(f, x, noise, wire);
}

}  // namespace zeropp::quant
#endif
