#include "zero/ops/cpu/softmax.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero/ops/cpu/softmax.cc"
#include <hwy/foreach_target.h>  // Re-includes this file for every target.
#include <hwy/highway.h>
// After the headers of every target:
#include "zero/ops/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::zero::ops {
namespace HWY_NAMESPACE {

/// Columns i .. i+15 of a row that has n allowed ones; the others become `fill`.
HWY_INLINE F allowed(F x, std::size_t i, std::size_t n, float fill) {
  if (i + kLanes <= n) return x;
  const U lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < static_cast<std::uint32_t>(n - i) + U{} ? x : splat(fill);
}

template <class T>
HWY_INLINE void zero_tail(void* row, std::size_t n, std::size_t ld) {
  for (std::size_t i = (n + kLanes - 1) / kLanes * kLanes; i < ld; i += kLanes) {
    store<T>(F{}, row, i);
  }
}

template <class T>
HWY_INLINE void forward_tile(const SoftmaxTile& t, float* max, float* inverse) {
  for (std::size_t r = 0; r < t.rows; ++r) {
    const std::size_t n = t.first + r + 1;
    float* scores = t.scores + r * t.ld;
    void* out = static_cast<typename T::Element*>(t.probabilities) + r * t.ld;
    F top = splat(-__builtin_inff());
    for (std::size_t i = 0; i < n; i += kLanes) {
      top = maximum(top, allowed(load<F32>(scores, i), i, n, -__builtin_inff()));
    }
    const float row_max = max_lanes(top) * t.scale;
    F sum = {};
    for (std::size_t i = 0; i < n; i += kLanes) {
      const F e = allowed(exp16(load<F32>(scores, i) * t.scale - row_max), i, n, 0);
      sum = sum + e;
      store<F32>(e, scores, i);
    }
    const float row_inverse = 1.0F / sum_lanes(sum);
    for (std::size_t i = 0; i < n; i += kLanes) {
      store<T>(load<F32>(scores, i) * row_inverse, out, i);
    }
    zero_tail<T>(out, n, t.ld);
    max[r] = row_max;
    inverse[r] = row_inverse;
  }
}

template <class T>
HWY_INLINE void backward_tile(const SoftmaxTile& t, const float* max, const float* inverse) {
  for (std::size_t r = 0; r < t.rows; ++r) {
    const std::size_t n = t.first + r + 1;
    float* scores = t.scores + r * t.ld;
    const float* dp = t.dprobabilities + r * t.ld;
    void* p_out = static_cast<typename T::Element*>(t.probabilities) + r * t.ld;
    void* ds_out = static_cast<typename T::Element*>(t.dscores) + r * t.ld;
    F dot = {};
    for (std::size_t i = 0; i < n; i += kLanes) {
      const F e = allowed(exp16(load<F32>(scores, i) * t.scale - max[r]), i, n, 0);
      const F p = e * inverse[r];
      dot = dot + allowed(p * load<F32>(dp, i), i, n, 0);
      store<F32>(p, scores, i);
    }
    const float mean = sum_lanes(dot);
    for (std::size_t i = 0; i < n; i += kLanes) {
      const F p = load<F32>(scores, i);
      const F ds = p * (load<F32>(dp, i) - mean) * t.scale;
      store<T>(allowed(ds, i, n, 0), ds_out, i);
      store<T>(p, p_out, i);
    }
    zero_tail<T>(p_out, n, t.ld);
    zero_tail<T>(ds_out, n, t.ld);
  }
}

void softmax_forward_kernel(const SoftmaxTile& t, float* max, float* inverse) {
  ZEROPP_FOR_DTYPE(t.dtype, forward_tile<T>(t, max, inverse))
}
void softmax_backward_kernel(const SoftmaxTile& t, const float* max, const float* inverse) {
  ZEROPP_FOR_DTYPE(t.dtype, backward_tile<T>(t, max, inverse))
}

}  // namespace HWY_NAMESPACE
}  // namespace zeropp::zero::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::zero::ops {

HWY_EXPORT(softmax_forward_kernel);
HWY_EXPORT(softmax_backward_kernel);

void softmax_forward(const SoftmaxTile& tile, float* max, float* inverse) {
  HWY_DYNAMIC_DISPATCH(softmax_forward_kernel)(tile, max, inverse);
}
void softmax_backward(const SoftmaxTile& tile, const float* max, const float* inverse) {
  HWY_DYNAMIC_DISPATCH(softmax_backward_kernel)(tile, max, inverse);
}

}  // namespace zeropp::zero::ops
#endif
