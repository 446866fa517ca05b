#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/int_block_encode.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "quant/int_block_windows-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

void EncodeBlocks(const IntBlockFormat& f, ConstView x, const RoundingNoise* noise,
                  std::byte* wire) {
  with_dtype(x.dtype, [&](auto type) {
    with_mode(f, [&](auto mode) {
      const Encoder e(f, noise);
      const auto* from = static_cast<const std::byte*>(x.data);
      f.bits == 8 ? encode_span<type(), 8, mode()>(e, from, x.n, wire)
                  : encode_span<type(), 4, mode()>(e, from, x.n, wire);
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
