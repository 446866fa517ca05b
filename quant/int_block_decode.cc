#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/int_block_decode.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/cache_control.h>

#include "quant/int_block_decode-inl.h"
#include "quant/reference.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

/// Sums every block; use and some take offsets in the span.
template <int kBits, class Use, class Some>
HWY_INLINE void sum_span(const IntBlockFormat& f, WireList wires, std::size_t n, const Use& use,
                         const Some& some) {
  const BlockSources sources(f, wires, n);
  std::uint64_t block = 0;
  for (std::size_t first = 0; first < n; first += f.block, ++block) {
    const std::size_t m = std::min(f.block, n - first);
    sum_range<kBits>(
        sources, block, 0, m, [&](std::size_t i, VF v) { use(first + i, v); },
        [&](std::size_t i, const float* v, std::size_t count) { some(first + i, v, count); });
  }
}

template <Dtype kType, int kBits, class Finish>
HWY_INLINE void sum_into(const IntBlockFormat& f, WireList wires, MutView out,
                         const Finish& finish) {
  auto* to = static_cast<std::byte*>(out.data);
  const auto rest = [&](std::size_t at, const float* v, std::size_t count) {
    for (std::size_t i = 0; i < count; i += kLanes) {
      const std::size_t m = std::min(kLanes, count - i);
      const VF x = load_some<Dtype::kF32>(reinterpret_cast<const std::byte*>(v + i), m);
      store_some<kType>(finish(x), to + (at + i) * size_of(kType), m);
    }
  };
  if (f.block % kLanes == 0 && can_stream<kType>(to, out.n)) {
    sum_span<kBits>(
        f, wires, out.n,
        [&](std::size_t at, VF v) { stream<kType>(finish(v), to + at * size_of(kType)); },
        rest);
    hwy::FlushStream();
  } else {
    sum_span<kBits>(
        f, wires, out.n,
        [&](std::size_t at, VF v) { store<kType>(finish(v), to + at * size_of(kType)); }, rest);
  }
}

template <class F>
HWY_INLINE void with_bits(int bits, const F& f) {
  if (bits == 8) {
    f(std::integral_constant<int, 8>());
  } else {
    f(std::integral_constant<int, 4>());
  }
}

void DecodeBlocks(const IntBlockFormat& f, const std::byte* wire, MutView out) {
  const std::span<const std::byte> one(wire, f.wire_size(out.n));
  with_dtype(out.dtype, [&](auto type) {
    with_bits(f.bits, [&](auto bits) {
      sum_into<type(), bits()>(f, {&one, 1}, out, [](VF v) { return v; });
    });
  });
}

void DecodeAddBlocks(const IntBlockFormat& f, const std::byte* wire, std::span<float> sum) {
  const std::span<const std::byte> one(wire, f.wire_size(sum.size()));
  with_bits(f.bits, [&](auto bits) {
    sum_span<bits()>(
        f, {&one, 1}, sum.size(),
        [&](std::size_t at, VF v) {
          float* to = sum.data() + at;
          hn::StoreU(canonical(hn::Add(hn::LoadU(DF(), to), v)), DF(), to);
        },
        [&](std::size_t at, const float* v, std::size_t count) {
          for (std::size_t i = 0; i < count; ++i) {
            sum[at + i] = reference::canonical(sum[at + i] + v[i]);
          }
        });
  });
}

void DecodeSumBlocks(const IntBlockFormat& f, WireList wires, float divisor, MutView out) {
  const VF by = hn::Set(DF(), divisor);
  with_dtype(out.dtype, [&](auto type) {
    with_bits(f.bits, [&](auto bits) {
      if (divisor == 1.0F) {
        sum_into<type(), bits()>(f, wires, out, [](VF v) { return canonical(v); });
      } else {
        sum_into<type(), bits()>(f, wires, out,
                                 [&](VF v) { return canonical(hn::Div(v, by)); });
      }
    });
  });
}

#else

void DecodeBlocks(const IntBlockFormat& f, const std::byte* wire, MutView out) {
  reference::decode_blocks(f, wire, out);
}
void DecodeAddBlocks(const IntBlockFormat& f, const std::byte* wire, std::span<float> sum) {
  reference::decode_add_blocks(f, wire, sum);
}
void DecodeSumBlocks(const IntBlockFormat& f, WireList wires, float divisor, MutView out) {
  reference::decode_sum_blocks(f, wires, divisor, out);
}

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(DecodeBlocks);
HWY_EXPORT(DecodeAddBlocks);
HWY_EXPORT(DecodeSumBlocks);

void decode_blocks(const IntBlockFormat& f, const std::byte* wire, MutView out) {
  if (scalar_forced()) return reference::decode_blocks(f, wire, out);
  HWY_DYNAMIC_DISPATCH(DecodeBlocks)(f, wire, out);
}

void decode_add_blocks(const IntBlockFormat& f, const std::byte* wire, std::span<float> sum) {
  if (scalar_forced()) return reference::decode_add_blocks(f, wire, sum);
  HWY_DYNAMIC_DISPATCH(DecodeAddBlocks)(f, wire, sum);
}

void decode_sum_blocks(const IntBlockFormat& f, WireList wires, float divisor, MutView out) {
  if (scalar_forced()) return reference::decode_sum_blocks(f, wires, divisor, out);
  HWY_DYNAMIC_DISPATCH(DecodeSumBlocks)(f, wires, divisor, out);
}

}  // namespace zeropp::quant
#endif
