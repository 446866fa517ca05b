// Conversions and elementwise fp32 arithmetic on views, once per instruction set.

#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/convert_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "quant/kernels.h"
#include "quant/reference.h"
#include "quant/simd-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

/// dst[i] = op(i-th vector of src); the tail goes through a zero-filled register.
template <Dtype kFrom, Dtype kTo, class Op>
HWY_INLINE void map(const std::byte* src, std::byte* dst, std::size_t n, const Op& op) {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store<kTo>(op(load<kFrom>(src + i * size_of(kFrom)), i), dst + i * size_of(kTo));
  }
  if (i < n) {
    const VF x = load_some<kFrom>(src + i * size_of(kFrom), n - i);
    store_some<kTo>(op(x, i), dst + i * size_of(kTo), n - i);
  }
}

template <class F>
HWY_INLINE void with_dtypes(Dtype a, Dtype b, const F& f) {
  with_dtype(a, [&](auto first) { with_dtype(b, [&](auto second) { f(first, second); }); });
}

void Convert(ConstView src, MutView dst) {
  with_dtypes(src.dtype, dst.dtype, [&](auto from, auto to) {
    if constexpr (from() != to()) {
      map<from(), to()>(static_cast<const std::byte*>(src.data),
                        static_cast<std::byte*>(dst.data), src.n,
                        [](VF x, std::size_t) { return x; });
    }
  });
}

void Accumulate(MutView acc, ConstView x) {
  with_dtypes(acc.dtype, x.dtype, [&](auto to, auto from) {
    auto* sums = static_cast<std::byte*>(acc.data);
    const std::size_t n = acc.n;
    map<from(), to()>(static_cast<const std::byte*>(x.data), sums, n, [&](VF v, std::size_t i) {
      const std::byte* at = sums + i * size_of(to());
      const VF old = i + kLanes <= n ? load<to()>(at) : load_some<to()>(at, n - i);
      return canonical(hn::Add(old, v));
    });
  });
}

void Divide(ConstView src, float divisor, MutView dst) {
  with_dtypes(src.dtype, dst.dtype, [&](auto from, auto to) {
    const VF by = hn::Set(DF(), divisor);
    map<from(), to()>(static_cast<const std::byte*>(src.data),
                      static_cast<std::byte*>(dst.data), src.n,
                      [&](VF x, std::size_t) { return canonical(hn::Div(x, by)); });
  });
}

/// kWire: dtype of `before` and `to`. A power of two divides exactly as its reciprocal
/// multiplies.
template <Dtype kFrom, Dtype kWire, bool kMultiply, bool kAdd>
std::uint64_t divide_add_run(ConstView x, float factor, ConstView before, MutView to) {
  const DI di;
  const VF by = hn::Set(DF(), factor);
  const VI limit = hn::Set(di, static_cast<std::int32_t>(underflow_limit(kWire)));
  const auto* old = static_cast<const std::byte*>(before.data);
  std::uint64_t underflow = 0;
  map<kFrom, kWire>(
      static_cast<const std::byte*>(x.data), static_cast<std::byte*>(to.data), to.n,
      [&](VF v, std::size_t i) {
        VF sum = canonical(kMultiply ? hn::Mul(v, by) : hn::Div(v, by));
        if constexpr (kAdd) {
          const std::byte* at = old + i * size_of(kWire);
          sum = canonical(hn::Add(
              sum, i + kLanes <= to.n ? load<kWire>(at) : load_some<kWire>(at, to.n - i)));
        }
        if constexpr (kWire != Dtype::kF32) {
          const VI bits = hn::BitCast(di, abs_bits(sum));
          underflow +=
              hn::CountTrue(di, hn::AndNot(hn::Gt(bits, limit), hn::Gt(bits, hn::Zero(di))));
        }
        return sum;
      });
  return underflow;
}

std::uint64_t DivideAdd(ConstView x, float divisor, ConstView before, MutView to) {
  int exponent = 0;
  const bool power = std::frexp(divisor, &exponent) == 0.5F && exponent < 100;
  const float factor = power ? 1.0F / divisor : divisor;
  std::uint64_t underflow = 0;
  with_dtypes(x.dtype, to.dtype, [&](auto from, auto wire) {
    const auto run = [&](auto multiply, auto add) {
      underflow = divide_add_run<from(), wire(), multiply(), add()>(x, factor, before, to);
    };
    const auto with_add = [&](auto multiply) {
      if (before.data != nullptr) {
        run(multiply, std::true_type());
      } else {
        run(multiply, std::false_type());
      }
    };
    if (power) {
      with_add(std::true_type());
    } else {
      with_add(std::false_type());
    }
  });
  return underflow;
}

bool AllFinite(ConstView x) {
  bool finite = true;
  with_dtype(x.dtype, [&](auto type) {
    const auto* p = static_cast<const std::byte*>(x.data);
    constexpr std::size_t kChunk = kLanes * 64;  // An early way out, without a branch a vector.
    const DI di;
    const VI last_finite = hn::Set(di, 0x7F7FFFFF);
    for (std::size_t first = 0; first < x.n && finite; first += kChunk) {
      const std::size_t end = std::min(x.n, first + kChunk);
      VI top = hn::Zero(di);
      std::size_t i = first;
      for (; i + kLanes <= end; i += kLanes) {
        top = hn::Max(top, hn::BitCast(di, abs_bits(load<type()>(p + i * size_of(type())))));
      }
      if (i < end) {
        const VF tail = load_some<type()>(p + i * size_of(type()), end - i);
        top = hn::Max(top, hn::BitCast(di, abs_bits(tail)));
      }
      finite = hn::AllFalse(di, hn::Gt(top, last_finite));
    }
  });
  return finite;
}

#else

void Convert(ConstView src, MutView dst) { reference::convert(src, dst); }
void Accumulate(MutView acc, ConstView x) { reference::accumulate(acc, x); }
void Divide(ConstView src, float divisor, MutView dst) { reference::divide(src, divisor, dst); }
bool AllFinite(ConstView x) { return reference::all_finite(x); }
std::uint64_t DivideAdd(ConstView x, float divisor, ConstView before, MutView to) {
  return reference::divide_add(x, divisor, before, to);
}

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(Convert);
HWY_EXPORT(Accumulate);
HWY_EXPORT(Divide);
HWY_EXPORT(AllFinite);
HWY_EXPORT(DivideAdd);

namespace kernels {

void convert(ConstView src, MutView dst) {
  if (scalar_forced()) return reference::convert(src, dst);
  HWY_DYNAMIC_DISPATCH(Convert)(src, dst);
}

void accumulate(MutView acc, ConstView x) {
  if (scalar_forced()) return reference::accumulate(acc, x);
  HWY_DYNAMIC_DISPATCH(Accumulate)(acc, x);
}

void divide(ConstView src, float divisor, MutView dst) {
  if (scalar_forced()) return reference::divide(src, divisor, dst);
  HWY_DYNAMIC_DISPATCH(Divide)(src, divisor, dst);
}

bool all_finite(ConstView x) {
  if (scalar_forced()) return reference::all_finite(x);
  return HWY_DYNAMIC_DISPATCH(AllFinite)(x);
}

std::uint64_t divide_add(ConstView x, float divisor, ConstView before, MutView to) {
  if (scalar_forced()) return reference::divide_add(x, divisor, before, to);
  return HWY_DYNAMIC_DISPATCH(DivideAdd)(x, divisor, before, to);
}

}  // namespace kernels
}  // namespace zeropp::quant
#endif
