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

constexpr std::size_t kChunk = 2048;
static_assert(kChunk % kTile == 0);

/// The blocks of the result, encoded soon after their numbers are known: several at once, while
/// they are in the nearest cache.
template <int kBits, Mode kMode>
class BlockSink {
 public:
  BlockSink(const IntBlockFormat& f, std::size_t n, const RoundingNoise* noise, std::byte* wire)
      : encoder_(f, noise),
        n_(n),
        scales_(wire),
        payload_(wire + f.payload_offset(n, 0)),
        sums_(nullptr, MemoryKind::kWorkspace, Dtype::kF32,
              std::min(std::max(f.block, kChunk), n) + kChunk) {}

  /// Room for kChunk more numbers.
  float* next() { return sums_.f32() + filled_; }

  /// `count` numbers have been written at next().
  void commit(std::size_t count) {
    const std::size_t block = encoder_.f.block;
    filled_ += count;
    const bool last = first_ + filled_ == n_;
    if (!last && filled_ < std::max(block, kChunk)) return;
    const std::size_t blocks = filled_ / block, ready = last ? filled_ : blocks * block;
    encode_all<Dtype::kF32, kBits, kMode>(encoder_,
                                          reinterpret_cast<const std::byte*>(sums_.f32()),
                                          ready, first_, scales_, payload_);
    first_ += ready;
    scales_ += blocks * IntBlockFormat::kScaleBytes;
    payload_ += blocks * encoder_.f.packed(block);
    filled_ -= ready;
    if (filled_ != 0) {
      std::memmove(sums_.f32(), sums_.f32() + ready, filled_ * sizeof(float));
    }
  }

 private:
  Encoder encoder_;
  std::size_t n_, first_ = 0, filled_ = 0;
  std::byte *scales_, *payload_;
  Tensor sums_;
};

template <int kFrom, int kTo, Mode kMode>
void reduce_span(const IntBlockFormat& from, WireList wires, std::size_t n, float divisor,
                 const IntBlockFormat& to, const RoundingNoise* noise, std::byte* wire) {
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
                        float divisor, const IntBlockFormat& to, const RoundingNoise* noise,
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
                        float divisor, const IntBlockFormat& to, const RoundingNoise* noise,
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
                          float divisor, const IntBlockFormat& to, const RoundingNoise* noise,
                          std::byte* wire) {
  if (scalar_forced()) {
    return reference::reduce_encode_blocks(from, wires, n, divisor, to, noise, wire);
  }
  HWY_DYNAMIC_DISPATCH(ReduceEncodeBlocks)(from, wires, n, divisor, to, noise, wire);
}

}  // namespace zeropp::quant
#endif
