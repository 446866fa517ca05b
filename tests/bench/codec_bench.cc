// Codec throughput beside memcpy of the same fp32 bytes, in one binary. bytes_per_second counts
// the numbers as fp32 whatever the view's dtype, so that rows compare with memcpy; nmse says
// that the timed code was right.

#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "quant/convert.h"
#include "quant/memory.h"
#include "quant/metrics.h"
#include "quant/registry.h"
#include "quant/rng.h"

namespace {

using namespace zeropp::quant;  // NOLINT: a program of one file.

constexpr std::size_t kSources = 8;

Tensor numbers(std::size_t n, Dtype dtype, std::uint32_t sender = 0) {
  Tensor normal(nullptr, MemoryKind::kHost, Dtype::kF32, n);
  const Philox random({.purpose = Purpose::kTest, .sender = sender});
  // Cheap and wide enough: sums of uniforms, not Box-Muller, for 2^26 numbers.
  for (std::size_t i = 0; i < n; i += 4) {
    const auto words = random.block(i / 4);
    for (std::size_t j = 0; j < 4 && i + j < n; ++j) {
      const std::uint32_t w = words[j];
      normal.f32()[i + j] =
          static_cast<float>(static_cast<int>((w & 0xFFFF) + (w >> 16)) - 65535) / 26755.0F;
    }
  }
  Tensor x(nullptr, MemoryKind::kHost, dtype, n);
  convert(normal.view(), x.view());
  return x;
}

double nmse(ConstView x, ConstView y) {
  ErrorSums sums;
  const std::size_t n = std::min<std::size_t>(x.n, 1 << 16);
  sums.add(x.slice(0, n), y.slice(0, n));
  return sums.metrics().nmse;
}

void count_bytes(benchmark::State& state, std::size_t fp32_bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * fp32_bytes));
}

void bench_memcpy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Buffer from(nullptr, MemoryKind::kHost, bytes), to(nullptr, MemoryKind::kHost, bytes);
  from.zero();
  to.zero();
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes);
}

void bench_encode(benchmark::State& state, const std::string& spec, Dtype dtype) {
  const auto codec = make_codec(spec);
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Tensor x = numbers(bytes / 4, dtype);
  Buffer wire(nullptr, MemoryKind::kHost, codec->max_wire_size(x.size()));
  wire.zero();
  for (auto _ : state) {
    codec->encode(x.view(), {}, wire.span());
    benchmark::ClobberMemory();
  }
  Tensor y(nullptr, MemoryKind::kHost, dtype, x.size());
  codec->decode(wire.span(), y.view());
  state.counters["nmse"] = nmse(x.view(), y.view());
  count_bytes(state, bytes);
}

void bench_decode(benchmark::State& state, const std::string& spec, Dtype dtype) {
  const auto codec = make_codec(spec);
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Tensor x = numbers(bytes / 4, dtype);
  Buffer wire(nullptr, MemoryKind::kHost, codec->max_wire_size(x.size()));
  codec->encode(x.view(), {}, wire.span());
  Tensor y(nullptr, MemoryKind::kHost, dtype, x.size());
  y.zero();
  for (auto _ : state) {
    codec->decode(wire.span(), y.view());
    benchmark::ClobberMemory();
  }
  state.counters["nmse"] = nmse(x.view(), y.view());
  count_bytes(state, bytes);
}

/// Eight sources to one wire; `fused` = false does what a library without reduce_encode would:
/// decode each, add, encode.
void bench_reduce(benchmark::State& state, const std::string& from_spec,
                  const std::string& to_spec, bool fused) {
  const auto from = make_codec(from_spec), to = make_codec(to_spec);
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t n = bytes / 4;
  std::vector<Buffer> sources;
  std::vector<std::span<const std::byte>> wires;
  Tensor sum(nullptr, MemoryKind::kHost, Dtype::kF32, n), one = numbers(n, Dtype::kF32);
  for (std::size_t s = 0; s < kSources; ++s) {
    sources.emplace_back(nullptr, MemoryKind::kHost, from->max_wire_size(n));
    from->encode(one.view(), {}, sources.back().span());
    wires.emplace_back(sources.back().span());
  }
  Buffer wire(nullptr, MemoryKind::kHost, to->max_wire_size(n));
  sum.zero();
  wire.zero();
  const Tensor x = numbers(n, Dtype::kF32);
  for (auto _ : state) {
    if (fused) {
      to->reduce_encode(*from, wires, n, kSources, {}, wire.span());
    } else {
      from->decode(wires[0], sum.view());
      for (std::size_t s = 1; s < kSources; ++s) {
        from->decode(wires[s], one.view());
        accumulate(sum.view(), one.view());
      }
      divide(sum.view(), kSources, sum.view());
      to->encode(sum.view(), {}, wire.span());
    }
    benchmark::ClobberMemory();
  }
  to->decode(wire.span(), sum.view());
  state.counters["nmse"] = nmse(x.view(), sum.view());
  count_bytes(state, bytes);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->Arg(64 << 10)->Arg(4 << 20)->Arg(256 << 20)->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  sizes(benchmark::RegisterBenchmark("memcpy", bench_memcpy));
  for (const std::string spec : {"int8", "int4", "int4:rounding=stochastic", "bf16", "fp16"}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
      const std::string tail = spec + "/" + std::string(name(dtype));
      sizes(
          benchmark::RegisterBenchmark(("encode/" + tail).c_str(), bench_encode, spec, dtype));
      sizes(
          benchmark::RegisterBenchmark(("decode/" + tail).c_str(), bench_decode, spec, dtype));
    }
  }
  for (const bool fused : {true, false}) {
    for (const auto& [from, to] :
         {std::pair{"int4", "int4"}, {"int8", "int4"}, {"int8", "int8"}}) {
      const std::string label =
          std::string("reduce_encode_8/") + from + "/" + to + (fused ? "/fused" : "/unfused");
      sizes(benchmark::RegisterBenchmark(label.c_str(), bench_reduce, from, to, fused));
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
