#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero/ops/cpu/gelu.cc"
#include <hwy/foreach_target.h>  // Re-includes this file for every target.
#include <hwy/highway.h>

#include "zero/ops/ops.h"
// After the headers of every target:
#include "zero/ops/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::zero::ops {
namespace HWY_NAMESPACE {

// (1 + tanh u)/2 is the sigmoid of 2u: one exponential and no cancellation for negative x.
constexpr float kTwoRootTwoOverPi = 1.5957691216F;
constexpr float kCubic = 0.044715F;

HWY_INLINE F gate(F x) { return sigmoid16(x * kTwoRootTwoOverPi * (x * x * kCubic + 1.0F)); }

/// d/dx of the gate's argument.
HWY_INLINE F gate_slope(F x) { return kTwoRootTwoOverPi * (x * x * (3 * kCubic) + 1.0F); }

template <class T>
HWY_INLINE void forward_all(const void* x, void* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    const F v = load_row<T>(x, i, n);
    store_row<T>(v * gate(v), y, i, n);
  }
}

template <class T>
HWY_INLINE void backward_all(const void* x, void* dy, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    const F v = load_row<T>(x, i, n);
    const F s = gate(v);
    const F d = s + v * s * (1.0F - s) * gate_slope(v);
    store_row<T>(load_row<T>(dy, i, n) * d, dy, i, n);
  }
}

void gelu_forward_kernel(quant::ConstView x, quant::MutView y) {
  ZEROPP_FOR_DTYPE(x.dtype, forward_all<T>(x.data, y.data, x.n))
}
void gelu_backward_kernel(quant::ConstView x, quant::MutView dy) {
  ZEROPP_FOR_DTYPE(x.dtype, backward_all<T>(x.data, dy.data, x.n))
}

}  // namespace HWY_NAMESPACE
}  // namespace zeropp::zero::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::zero::ops {

HWY_EXPORT(gelu_forward_kernel);
HWY_EXPORT(gelu_backward_kernel);

void gelu_forward(quant::ConstView x, quant::MutView y) {
  HWY_DYNAMIC_DISPATCH(gelu_forward_kernel)(x, y);
}
void gelu_backward(quant::ConstView x, quant::MutView dy) {
  HWY_DYNAMIC_DISPATCH(gelu_backward_kernel)(x, dy);
}

}  // namespace zeropp::zero::ops
#endif
