#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/int_block_reduce.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "quant/int_block_decode-inl.h"
#include "quant/int_block_encode-inl.h"
#include "quant/memory.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

/// The blocks of the result, encoded as soon as their numbers are known.
template <int kBits, Mode kMode>
class BlockSink {
 public:
  BlockSink(const IntBlockFormat& f, std::size_t n, const Philox* noise, std::byte* wire)
      : encoder_(f, noise),
        n_(n),
        scale_(wire),
        payload_(wire + f.payload_offset(n, 0)),
        sums_(nullptr, MemoryKind::kWorkspace, Dtype::kF32, std::min(f.block, n) + kChunk) {}

  static constexpr std::size_t kChunk = 2048;

  /// Room for kChunk more numbers.
  float* next() { return sums_.f32() + filled_; }

  /// `count` numbers have been written at next().
  void commit(std::size_t count) {
    filled_ += count;
    std::size_t used = 0;
    while (first_ < n_) {
      const std::size_t m = std::min(encoder_.f.block, n_ - first_);
      if (filled_ - used < m) break;
      const auto* x = reinterpret_cast<const std::byte*>(sums_.f32() + used);
      encode_block<Dtype::kF32, kBits, kMode>(encoder_, x, m, first_, scale_, payload_);
      used += m;
      first_ += m;
      scale_ += IntBlockFormat::kScaleBytes;
      payload_ += encoder_.f.packed(m);
    }
    filled_ -= used;
    if (used != 0 && filled_ != 0) {
      std::memmove(sums_.f32(), sums_.f32() + used, filled_ * sizeof(float));
    }
  }

 private:
  Encoder encoder_;
  std::size_t n_, first_ = 0, filled_ = 0;
  std::byte *scale_, *payload_;
  Tensor sums_;
};

template <int kFrom, int kTo, Mode kMode>
void reduce_span(const IntBlockFormat& from, WireList wires, std::size_t n, float divisor,
                 const IntBlockFormat& to, const Philox* noise, std::byte* wire) {
  constexpr std::size_t kChunk = BlockSink<kTo, kMode>::kChunk;
  static_assert(kChunk % kTile == 0);
  const BlockSources sources(from, wires, n);
  const VF by = hn::Set(DF(), divisor);
  const bool divide = divisor != 1.0F;
  BlockSink<kTo, kMode> sink(to, n, noise, wire);
  std::uint64_t block = 0;
  for (std::size_t first = 0; first < n; first += from.block, ++block) {
    const std::size_t m = std::min(from.block, n - first);
    for (std::size_t begin = 0; begin < m; begin += kChunk) {
      const std::size_t end = std::min(m, begin + kChunk);
      float* sums = sink.next();
      sum_range<kFrom>(
          sources, block, begin, end,
          [&](std::size_t i, VF v) {
            hn::StoreU(divide ? hn::Div(v, by) : v, DF(), sums + (i - begin));
          },
          [&](std::size_t i, const float* v, std::size_t count) {
            for (std::size_t j = 0; j < count; ++j) sums[i - begin + j] = v[j] / divisor;
          });
      sink.commit(end - begin);
    }
  }
}

void ReduceEncodeBlocks(const IntBlockFormat& from, WireList wires, std::size_t n,
                        float divisor, const IntBlockFormat& to, const Philox* noise,
                        std::byte* wire) {
  with_mode(to, [&](auto mode) {
    const auto run =
        from.bits == 8
            ? (to.bits == 8 ? &reduce_span<8, 8, mode()> : &reduce_span<8, 4, mode()>)
            : (to.bits == 8 ? &reduce_span<4, 8, mode()> : &reduce_span<4, 4, mode()>);
    run(from, wires, n, divisor, to, noise, wire);
  });
}

#else

void ReduceEncodeBlocks(const IntBlockFormat& from, WireList wires, std::size_t n,
                        float divisor, const IntBlockFormat& to, const Philox* noise,
                        std::byte* wire) {
  reference::reduce_encode_blocks(from, wires, n, divisor, to, noise, wire);
}

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(ReduceEncodeBlocks);

void reduce_encode_blocks(const IntBlockFormat& from, WireList wires, std::size_t n,
                          float divisor, const IntBlockFormat& to, const Philox* noise,
                          std::byte* wire) {
  if (scalar_forced()) {
    return reference::reduce_encode_blocks(from, wires, n, divisor, to, noise, wire);
  }
  HWY_DYNAMIC_DISPATCH(ReduceEncodeBlocks)(from, wires, n, divisor, to, noise, wire);
}

}  // namespace zeropp::quant
#endif
