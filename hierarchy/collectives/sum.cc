#include "hierarchy/collectives/sum.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "hierarchy/collectives/common.h"

namespace zeropp::hierarchy::detail {
namespace {

using quant::Dtype;
using Wires = std::span<const std::span<const std::byte>>;

/// More sources than this are more streams than the hardware follows.
constexpr std::size_t kMaxStreams = 16;
constexpr std::size_t kRun = 16;  ///< Elements of one cache line.

bool is_aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % alignof(float) == 0;
}

struct Sum {
  std::array<const float*, kMaxStreams> sources;
  std::size_t count;
  float divisor;

  template <std::size_t kElems>
  void run(std::size_t first, float* out) const {
    std::array<float, kElems> sum;
    const float* x = sources[0] + first;
    for (std::size_t i = 0; i < kElems; ++i) sum[i] = x[i];
    for (std::size_t s = 1; s < count; ++s) {
      x = sources[s] + first;
      for (std::size_t i = 0; i < kElems; ++i) sum[i] += x[i];
    }
    for (std::size_t i = 0; i < kElems; ++i) out[first + i] = sum[i] / divisor;
  }
};

bool takes_streams(const quant::Codec& codec, Wires wires, quant::MutView out) {
  if (out.dtype != Dtype::kF32 || !is_aligned(out.data)) return false;
  if (wires.empty() || wires.size() > kMaxStreams || !is_copy(codec, Dtype::kF32)) return false;
  return std::all_of(wires.begin(), wires.end(), [&](std::span<const std::byte> wire) {
    return is_aligned(wire.data()) && wire.size() >= out.bytes();
  });
}

}  // namespace

void decode_sum(const quant::Codec& codec, Wires wires, float divisor,
                const quant::CodecContext& receiver, quant::MutView out) {
  if (!takes_streams(codec, wires, out)) {
    codec.decode_sum_with(wires, divisor, receiver, out);
    return;
  }
  Sum sum{.sources = {}, .count = wires.size(), .divisor = divisor};
  for (std::size_t s = 0; s < wires.size(); ++s) {
    sum.sources[s] = reinterpret_cast<const float*>(wires[s].data());
  }
  auto* to = static_cast<float*>(out.data);
  std::size_t i = 0;
  for (; i + kRun <= out.n; i += kRun) sum.run<kRun>(i, to);
  for (; i < out.n; ++i) sum.run<1>(i, to);
}

std::size_t encode_sum(const quant::Codec& from, const quant::Codec& to, Wires wires,
                       std::size_t n, float divisor, const quant::CodecContext& receiver,
                       const quant::CodecContext& sender, std::span<std::byte> place) {
  if (is_aligned(place.data()) && is_copy(to, Dtype::kF32)) {
    decode_sum(from, wires, divisor, receiver, {place.data(), Dtype::kF32, n});
    return n * size_of(Dtype::kF32);
  }
  if (from.traits().receiver_state) {
    quant::Tensor sum(nullptr, quant::MemoryKind::kWorkspace, Dtype::kF32, n);
    from.decode_sum_with(wires, divisor, receiver, sum.view());
    return to.encode(sum.view(), sender, place);
  }
  return to.reduce_encode(from.decoder(), wires, n, divisor, sender, place);
}

}  // namespace zeropp::hierarchy::detail
