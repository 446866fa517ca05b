// One elementwise update on every instruction set: IEEE add, multiply, divide and square root
// in fp32, no fused operation, so each vector width gives the bits of one-lane code.
//
//   AdamW   p *= 1 - lr*wd;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*(g*g)
//           p -= lr/c1 * m / (sqrt(v)/sqrt(c2) + eps),  c = 1 - b^t (1 without bias correction)
//   Adam    the same with g += wd*p instead of the first line
//   SGD     g += wd*p;  m = mu*m + g;  p -= lr*m (or lr*g without momentum)
//
// Scalars are computed in double and rounded once, as torch does.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero/optimizer.cc"
#include <hwy/foreach_target.h>  // Re-includes this file for every target.
#include <hwy/highway.h>

#include "zero/optimizer_scalars.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::zero {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
hn::VFromD<D> mul_add(D d, float a, hn::VFromD<D> x, hn::VFromD<D> plus) {
  return hn::Add(hn::Mul(hn::Set(d, a), x), plus);  // Two roundings on purpose.
}

template <class D>
hn::VFromD<D> gradient(D d, const UpdateScalars& s, const float* grad) {
  const auto g = hn::LoadU(d, grad);
  return s.grad_divisor == 1.0F ? g : hn::Div(g, hn::Set(d, s.grad_divisor));
}

template <class D>
void adam_lanes(D d, const UpdateScalars& s, float* master, float* m, float* v,
                const float* grad) {
  auto p = hn::LoadU(d, master);
  auto g = gradient(d, s, grad);
  if (s.decoupled) {
    p = hn::Mul(p, hn::Set(d, s.keep));
  } else if (s.decay != 0.0F) {
    g = mul_add(d, s.decay, p, g);
  }
  const auto m1 =
      mul_add(d, s.beta1, hn::LoadU(d, m), hn::Mul(hn::Set(d, s.one_minus_beta1), g));
  const auto v1 = mul_add(d, s.beta2, hn::LoadU(d, v),
                          hn::Mul(hn::Set(d, s.one_minus_beta2), hn::Mul(g, g)));
  const auto root = hn::Div(hn::Sqrt(v1), hn::Set(d, s.sqrt_correction2));
  const auto step =
      hn::Mul(hn::Set(d, s.step_size), hn::Div(m1, hn::Add(root, hn::Set(d, s.eps))));
  hn::StoreU(m1, d, m);
  hn::StoreU(v1, d, v);
  hn::StoreU(hn::Sub(p, step), d, master);
}

template <class D>
void sgd_lanes(D d, const UpdateScalars& s, float* master, float* m, const float* grad) {
  const auto p = hn::LoadU(d, master);
  auto g = gradient(d, s, grad);
  if (s.decay != 0.0F) g = mul_add(d, s.decay, p, g);
  if (s.momentum != 0.0F) {
    g = mul_add(d, s.momentum, hn::LoadU(d, m), g);
    hn::StoreU(g, d, m);
  }
  hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, s.step_size), g)), d, master);
}

void update_tile(const UpdateScalars& s, float* master, float* m, float* v, const float* grad,
                 std::size_t n) {
  const hn::ScalableTag<float> wide;
  const hn::CappedTag<float, 1> one;
  const std::size_t lanes = hn::Lanes(wide);
  std::size_t i = 0;
  if (s.sgd) {
    float* buffer = s.momentum != 0.0F ? m : master;  // Untouched without momentum.
    for (; i + lanes <= n; i += lanes) sgd_lanes(wide, s, master + i, buffer + i, grad + i);
    for (; i < n; ++i) sgd_lanes(one, s, master + i, buffer + i, grad + i);
  } else {
    for (; i + lanes <= n; i += lanes) adam_lanes(wide, s, master + i, m + i, v + i, grad + i);
    for (; i < n; ++i) adam_lanes(one, s, master + i, m + i, v + i, grad + i);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace zeropp::zero
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "quant/convert.h"
#include "quant/error.h"
#include "zero/optimizer.h"

namespace zeropp::zero {
namespace {

HWY_EXPORT(update_tile);

UpdateScalars scalars(const OptimizerConfig& c, const OptimizerArgs& a) {
  UpdateScalars s;
  s.sgd = c.kind == OptimizerKind::kSgd;
  s.decoupled = c.kind == OptimizerKind::kAdamW;
  s.grad_divisor = a.grad_divisor;
  s.decay = static_cast<float>(a.weight_decay);
  s.momentum = static_cast<float>(c.momentum);
  s.keep = static_cast<float>(1 - a.lr * a.weight_decay);
  s.beta1 = static_cast<float>(c.beta1);
  s.beta2 = static_cast<float>(c.beta2);
  s.one_minus_beta1 = static_cast<float>(1 - c.beta1);
  s.one_minus_beta2 = static_cast<float>(1 - c.beta2);
  s.eps = static_cast<float>(c.eps);
  double correction1 = 1, correction2 = 1;
  if (!s.sgd && c.bias_correction) {
    const auto t = static_cast<double>(a.t);
    correction1 = 1 - std::pow(c.beta1, t);
    correction2 = 1 - std::pow(c.beta2, t);
  }
  s.step_size = static_cast<float>(a.lr / correction1);
  s.sqrt_correction2 = static_cast<float>(std::sqrt(correction2));
  return s;
}

}  // namespace

OptimizerKind parse_optimizer(std::string_view type, bool adam_w_mode) {
  std::string lower(type);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "adamw") return OptimizerKind::kAdamW;
  if (lower == "adam") return adam_w_mode ? OptimizerKind::kAdamW : OptimizerKind::kAdam;
  if (lower == "sgd") return OptimizerKind::kSgd;
  throw UsageError("optimizer", "type Adam, AdamW or SGD", "'" + std::string(type) + "'");
}

void optimizer_update(const OptimizerConfig& config, const OptimizerArgs& args) {
  const UpdateScalars s = scalars(config, args);
  const auto update = HWY_DYNAMIC_DISPATCH(update_tile);
  if (args.grad.dtype == quant::Dtype::kF32) {
    update(s, args.master, args.m, args.v, static_cast<const float*>(args.grad.data),
           args.grad.n);
    return;
  }
  std::array<float, 1024> tile;
  for (std::size_t first = 0; first < args.grad.n; first += tile.size()) {
    const std::size_t count = std::min(tile.size(), args.grad.n - first);
    quant::convert(args.grad.slice(first, count), {tile.data(), quant::Dtype::kF32, count});
    const auto at = [&](float* x) { return x == nullptr ? nullptr : x + first; };
    update(s, args.master + first, at(args.m), at(args.v), tile.data(), count);
  }
}

}  // namespace zeropp::zero
#endif  // HWY_ONCE
