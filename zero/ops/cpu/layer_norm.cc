#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero/ops/cpu/layer_norm.cc"
#include <hwy/foreach_target.h>  // Re-includes this file for every target.
#include <hwy/highway.h>

#include "quant/convert.h"
#include "zero/ops/ops.h"
// After the headers of every target:
#include "zero/ops/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::zero::ops {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE void normalize_rows(const LayerNormForward& a) {
  const std::size_t n = a.cols;
  const auto width = static_cast<float>(n);
  for (std::size_t r = 0; r < a.rows; ++r) {
    const void* x = static_cast<const typename T::Element*>(a.x.data) + r * n;
    void* y = static_cast<typename T::Element*>(a.y.data) + r * n;
    F sum = {};
    for (std::size_t i = 0; i < n; i += kLanes) sum = sum + load_row<T>(x, i, n);
    const float mean = sum_lanes(sum) / width;
    F squares = {};
    for (std::size_t i = 0; i < n; i += kLanes) {
      const F d = load_row<T>(x, i, n) - mean;
      squares = squares + (i + kLanes <= n ? d * d : first_lanes(d * d, n - i));
    }
    const float rstd = 1.0F / __builtin_sqrtf(sum_lanes(squares) / width + a.eps);
    for (std::size_t i = 0; i < n; i += kLanes) {
      const F hat = (load_row<T>(x, i, n) - mean) * rstd;
      const F out = hat * load_row<T>(a.weight.data, i, n) + load_row<T>(a.bias.data, i, n);
      store_row<T>(out, y, i, n);
    }
    a.mean[r] = mean;
    a.rstd[r] = rstd;
  }
}

/// dweight and dbias: fp32 running sums of padded(cols) floats.
template <class T>
HWY_INLINE void backward_rows(const LayerNormBackward& a, float* dweight, float* dbias) {
  const std::size_t n = a.cols;
  const auto width = static_cast<float>(n);
  for (std::size_t r = 0; r < a.rows; ++r) {
    const void* x = static_cast<const typename T::Element*>(a.x.data) + r * n;
    const void* dy = static_cast<const typename T::Element*>(a.dy.data) + r * n;
    void* dx = static_cast<typename T::Element*>(a.dx.data) + r * n;
    const float mean = a.mean[r], rstd = a.rstd[r];
    F sum = {}, dot = {};
    // Beyond the row dy is 0, so those lanes add nothing to any sum.
    for (std::size_t i = 0; i < n; i += kLanes) {
      const F hat = (load_row<T>(x, i, n) - mean) * rstd;
      const F d = load_row<T>(dy, i, n);
      const F g = d * load_row<T>(a.weight.data, i, n);
      sum = sum + g;
      dot = dot + g * hat;
      store<F32>(load<F32>(dweight, i) + d * hat, dweight, i);
      store<F32>(load<F32>(dbias, i) + d, dbias, i);
    }
    const float mean_g = sum_lanes(sum) / width, mean_dot = sum_lanes(dot) / width;
    for (std::size_t i = 0; i < n; i += kLanes) {
      const F hat = (load_row<T>(x, i, n) - mean) * rstd;
      const F g = load_row<T>(dy, i, n) * load_row<T>(a.weight.data, i, n);
      const F d = (g - mean_g - hat * mean_dot) * rstd;
      store_row<T>(load_row<T>(dx, i, n) + d, dx, i, n);
    }
  }
}

void layer_norm_forward_kernel(const LayerNormForward& a) {
  ZEROPP_FOR_DTYPE(a.x.dtype, normalize_rows<T>(a))
}
void layer_norm_backward_kernel(const LayerNormBackward& a, float* dweight, float* dbias) {
  ZEROPP_FOR_DTYPE(a.x.dtype, backward_rows<T>(a, dweight, dbias))
}

}  // namespace HWY_NAMESPACE
}  // namespace zeropp::zero::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::zero::ops {

HWY_EXPORT(layer_norm_forward_kernel);
HWY_EXPORT(layer_norm_backward_kernel);

void layer_norm_forward(const LayerNormForward& args) {
  HWY_DYNAMIC_DISPATCH(layer_norm_forward_kernel)(args);
}

void layer_norm_backward(Context& ctx, const LayerNormBackward& args) {
  const std::size_t padded = (args.cols + 15) / 16 * 16;
  float* sums = ctx.scratch_f32(Slot::kSums, 2 * padded);
  for (std::size_t i = 0; i < 2 * padded; ++i) sums[i] = 0;
  HWY_DYNAMIC_DISPATCH(layer_norm_backward_kernel)(args, sums, sums + padded);
  convert(quant::ConstView{sums, quant::Dtype::kF32, args.cols}, args.dweight);
  convert(quant::ConstView{sums + padded, quant::Dtype::kF32, args.cols}, args.dbias);
}

}  // namespace zeropp::zero::ops
#endif
