// Rates of codecs beside memcpy of the same bytes, in the same run.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "experiments/codecs/measure.h"
#include "quant/codec_state.h"
#include "quant/contract/calls.h"

namespace zeropp::experiments {
namespace {

using quant::MemoryKind;
using quant::contract::call_decode;
using quant::contract::call_encode;
using quant::contract::call_reduce_encode;

/// Quantile q of sorted values, between neighbours linear.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

/// Keeps the compiler from leaving out work whose result nobody reads.
void keep(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

template <class Work>
double seconds(std::size_t calls, const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < calls; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Runs work once to warm up, then repetitions of at least a millisecond each.
template <class Work>
Rate rate(std::size_t bytes, int repetitions, const Work& work) {
  constexpr double kLeast = 1e-3;
  const double first = std::max(seconds(1, work), 1e-9);
  const auto calls = static_cast<std::size_t>(std::max(1.0, kLeast / first));
  std::vector<double> gbs;
  for (int i = 0; i < repetitions; ++i) {
    const double passed = std::max(seconds(calls, work), 1e-9);
    gbs.push_back(static_cast<double>(bytes) * static_cast<double>(calls) / passed / 1e9);
  }
  std::sort(gbs.begin(), gbs.end());
  return {quantile(gbs, 0.5), (quantile(gbs, 0.75) - quantile(gbs, 0.25)) / 2};
}

}  // namespace

CodecSpeed measure_speed(const quant::Codec& codec, const CodecData& data, int repetitions) {
  const quant::Tensor& x = data.by_rank[0];
  const std::size_t bytes = x.view().bytes(), size = codec.max_wire_size(data.n());
  quant::Tensor y(nullptr, MemoryKind::kHost, x.dtype(), x.size());
  y.zero();
  quant::Buffer wire(nullptr, MemoryKind::kHost, size);
  wire.zero();
  std::vector<quant::Buffer> sources;
  std::vector<std::span<const std::byte>> wires;
  const auto ranks = static_cast<std::uint32_t>(data.by_rank.size());
  for (std::size_t r = 0; r < data.by_rank.size(); ++r) {
    sources.emplace_back(nullptr, MemoryKind::kHost, size);
    const quant::CodecContext ctx{.sender = static_cast<std::uint32_t>(r),
                                  .group_size = ranks,
                                  .group_index = static_cast<std::uint32_t>(r)};
    const std::size_t used =
        call_encode(codec, data.by_rank[r].view(), ctx, sources.back().span());
    wires.push_back(sources.back().span().first(used));
  }
  quant::CodecState sent, received;  // Residuals stay where they are from call to call.
  const quant::CodecContext sender{.group_size = ranks, .state = &sent},
      receiver{.group_size = ranks, .state = &received};
  CodecSpeed speed;
  speed.copy = rate(bytes, repetitions, [&] {
    std::memcpy(y.view().data, x.view().data, bytes);
    keep(y.view().data);
  });
  std::size_t used = 0;
  speed.encode = rate(bytes, repetitions, [&] {
    used = codec.encode(x.view(), sender, wire.span());
    keep(wire.data());
  });
  speed.decode = rate(bytes, repetitions, [&] {
    call_decode(codec, wire.span().first(used), receiver, y.view());
    keep(y.view().data);
  });
  speed.reduce_encode = rate(bytes, repetitions, [&] {
    call_reduce_encode(codec, codec, wires, x.size(), static_cast<float>(wires.size()),
                       receiver, wire.span());
    keep(wire.data());
  });
  return speed;
}

}  // namespace zeropp::experiments
