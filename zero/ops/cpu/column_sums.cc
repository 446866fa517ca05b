#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero/ops/cpu/column_sums.cc"
#include <hwy/foreach_target.h>  // Re-includes this file for every target.
#include <hwy/highway.h>

#include "quant/convert.h"
#include "zero/ops/ops.h"
// After the headers of every target:
#include "zero/ops/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::zero::ops {
namespace HWY_NAMESPACE {

/// Four vectors of columns stay in registers down all rows.
template <class T>
HWY_INLINE void sum_rows(const void* x, std::size_t rows, std::size_t cols, float* out) {
  const auto* base = static_cast<const typename T::Element*>(x);
  std::size_t j = 0;
  for (; j + 4 * kLanes <= cols; j += 4 * kLanes) {
    F s0 = {}, s1 = {}, s2 = {}, s3 = {};
    for (std::size_t r = 0; r < rows; ++r) {
      const typename T::Element* row = base + r * cols + j;
      s0 = s0 + load<T>(row, 0);
      s1 = s1 + load<T>(row, kLanes);
      s2 = s2 + load<T>(row, 2 * kLanes);
      s3 = s3 + load<T>(row, 3 * kLanes);
    }
    store<F32>(s0, out, j);
    store<F32>(s1, out, j + kLanes);
    store<F32>(s2, out, j + 2 * kLanes);
    store<F32>(s3, out, j + 3 * kLanes);
  }
  for (; j < cols; j += kLanes) {
    F s = {};
    for (std::size_t r = 0; r < rows; ++r) s = s + load_row<T>(base + r * cols, j, cols);
    store_row<F32>(s, out, j, cols);
  }
}

void column_sums_kernel(quant::ConstView x, std::size_t rows, std::size_t cols, float* out) {
  ZEROPP_FOR_DTYPE(x.dtype, sum_rows<T>(x.data, rows, cols, out))
}

}  // namespace HWY_NAMESPACE
}  // namespace zeropp::zero::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::zero::ops {

HWY_EXPORT(column_sums_kernel);

void column_sums(Context& ctx, quant::ConstView x, std::size_t rows, std::size_t cols,
                 quant::MutView out) {
  float* sums = ctx.scratch_f32(Slot::kSums, cols);
  HWY_DYNAMIC_DISPATCH(column_sums_kernel)(x, rows, cols, sums);
  convert(quant::ConstView{sums, quant::Dtype::kF32, cols}, out);
}

void add(quant::MutView acc, quant::ConstView x) { accumulate(acc, x); }

}  // namespace zeropp::zero::ops
#endif
