#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero/ops/cpu/cross_entropy.cc"
#include <hwy/foreach_target.h>  // Re-includes this file for every target.
#include <hwy/highway.h>

#include <cmath>

#include "zero/ops/ops.h"
// After the headers of every target:
#include "zero/ops/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::zero::ops {
namespace HWY_NAMESPACE {

/// stats[0] = max, stats[1] = sum of e^(logit - max).
void row_stats_kernel(const float* logits, std::size_t n, float* stats) {
  const float inf = __builtin_inff();
  F top = splat(-inf);
  for (std::size_t i = 0; i < n; i += kLanes) {
    top = maximum(top, load_row<F32>(logits, i, n, -inf));
  }
  const float max = max_lanes(top);
  F sum = {};
  for (std::size_t i = 0; i < n; i += kLanes) {
    sum = sum + exp16(load_row<F32>(logits, i, n, -inf) - max);
  }
  stats[0] = max;
  stats[1] = sum_lanes(sum);
}

template <class T>
HWY_INLINE void row_backward(const float* logits, std::size_t n, std::size_t target, float max,
                             float inverse, float scale, void* out) {
  const float at_target = logits[target];  // Before an aliasing store.
  for (std::size_t i = 0; i < n; i += kLanes) {
    const F p = exp16(load_row<F32>(logits, i, n) - max) * inverse;
    store_row<T>(p * scale, out, i, n);
  }
  const F p = exp16(splat(at_target) - max) * inverse;
  store_n<T>((p - 1.0F) * scale, out, target, 1);
}

void row_backward_kernel(const float* logits, std::size_t n, std::size_t target, float max,
                         float inverse, float scale, quant::MutView out) {
  ZEROPP_FOR_DTYPE(out.dtype, row_backward<T>(logits, n, target, max, inverse, scale, out.data))
}

}  // namespace HWY_NAMESPACE
}  // namespace zeropp::zero::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::zero::ops {

HWY_EXPORT(row_stats_kernel);
HWY_EXPORT(row_backward_kernel);

namespace {

std::size_t unmasked(std::span<const std::int32_t> targets) {
  std::size_t n = 0;
  for (const std::int32_t t : targets) n += t >= 0;
  return n;
}

}  // namespace

double cross_entropy_forward(const CrossEntropy& args, float* stats) {
  double total = 0;
  for (std::size_t r = 0; r < args.rows; ++r) {
    if (args.targets[r] < 0) continue;
    const float* row = args.logits + r * args.vocab;
    HWY_DYNAMIC_DISPATCH(row_stats_kernel)(row, args.vocab, stats + 2 * r);
    const double log_sum =
        std::log(static_cast<double>(stats[2 * r + 1])) + static_cast<double>(stats[2 * r]);
    total += log_sum - static_cast<double>(row[args.targets[r]]);
  }
  const std::size_t n = unmasked(args.targets);
  return n == 0 ? 0.0 : total / static_cast<double>(n);
}

void cross_entropy_backward(const CrossEntropy& args, const float* stats, float scale,
                            quant::MutView dlogits) {
  const std::size_t n = unmasked(args.targets);
  const float each = n == 0 ? 0.0F : scale / static_cast<float>(n);
  for (std::size_t r = 0; r < args.rows; ++r) {
    const quant::MutView out = dlogits.slice(r * args.vocab, args.vocab);
    if (args.targets[r] < 0) {
      for (std::byte& b : out.as_bytes()) b = std::byte{0};
      continue;
    }
    HWY_DYNAMIC_DISPATCH(row_backward_kernel)
    (args.logits + r * args.vocab, args.vocab, static_cast<std::size_t>(args.targets[r]),
     stats[2 * r], 1.0F / stats[2 * r + 1], each, out);
  }
}

}  // namespace zeropp::zero::ops
#endif
