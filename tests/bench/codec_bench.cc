// Codec throughput beside memcpy. `x` is the speed in memcpys: the time of a memcpy of the
// view, taken just before in the same process, divided by the codec's. bytes_per_second counts
// the numbers as fp32 whatever the view's dtype, so that rows compare; nmse says that the timed
// code was right.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "quant/codec_state.h"
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

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Median of five batches of at least half a millisecond.
double memcpy_seconds(std::size_t bytes) {
  Buffer from(nullptr, MemoryKind::kHost, bytes), to(nullptr, MemoryKind::kHost, bytes);
  from.zero();
  to.zero();
  const std::size_t count = std::max<std::size_t>(1, (std::size_t{48} << 20) / bytes);
  std::vector<double> batches;
  for (int b = 0; b < 5; ++b) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(to.data(), from.data(), bytes);
      benchmark::ClobberMemory();
    }
    batches.push_back(seconds_since(start) / static_cast<double>(count));
  }
  std::nth_element(batches.begin(), batches.begin() + 2, batches.end());
  return batches[2];
}

/// Runs the timed loop and books its speed in memcpys of view_bytes.
template <class Body>
void time(benchmark::State& state, std::size_t view_bytes, const Body& body) {
  const double copy = memcpy_seconds(view_bytes);
  body();  // Warm.
  const auto start = Clock::now();
  for (auto _ : state) {
    body();
    benchmark::ClobberMemory();
  }
  const double each = seconds_since(start) / static_cast<double>(state.iterations());
  state.counters["x"] = copy / each;
}

void bench_memcpy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Buffer from(nullptr, MemoryKind::kHost, bytes), to(nullptr, MemoryKind::kHost, bytes);
  from.zero();
  to.zero();
  time(state, bytes, [&] { std::memcpy(to.data(), from.data(), bytes); });
  count_bytes(state, bytes);
}

void bench_encode(benchmark::State& state, const std::string& spec, Dtype dtype) {
  const auto codec = make_codec(spec);
  CodecState residuals;  // Of error feedback; encoding the same again is a step like any other.
  CodecContext context;
  if (codec->traits().stateful) context.state = &residuals;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Tensor x = numbers(bytes / 4, dtype);
  Buffer wire(nullptr, MemoryKind::kHost, codec->max_wire_size(x.size()));
  wire.zero();
  std::size_t used = 0;
  time(state, x.size() * size_of(dtype),
       [&] { used = codec->encode(x.view(), context, wire.span()); });
  CodecState fresh;  // Later steps send what earlier ones lost as well.
  if (codec->traits().stateful) {
    context.state = &fresh;
    used = codec->encode(x.view(), context, wire.span());
  }
  Tensor y(nullptr, MemoryKind::kHost, dtype, x.size());
  codec->decode(wire.span().first(used), y.view());
  state.counters["nmse"] = nmse(x.view(), y.view());
  count_bytes(state, bytes);
}

void bench_decode(benchmark::State& state, const std::string& spec, Dtype dtype) {
  const auto codec = make_codec(spec);
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Tensor x = numbers(bytes / 4, dtype);
  Buffer wire(nullptr, MemoryKind::kHost, codec->max_wire_size(x.size()));
  CodecState residuals;
  CodecContext context;
  if (codec->traits().stateful) context.state = &residuals;
  const std::span<const std::byte> sent =
      wire.span().first(codec->encode(x.view(), context, wire.span()));
  Tensor y(nullptr, MemoryKind::kHost, dtype, x.size());
  y.zero();
  time(state, x.size() * size_of(dtype), [&] { codec->decode(sent, y.view()); });
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
  time(state, bytes, [&] {
    if (fused) {
      to->reduce_encode(*from, wires, n, kSources, {}, wire.span());
      return;
    }
    from->decode(wires[0], sum.view());
    for (std::size_t s = 1; s < kSources; ++s) {
      from->decode(wires[s], one.view());
      accumulate(sum.view(), one.view());
    }
    divide(sum.view(), kSources, sum.view());
    to->encode(sum.view(), {}, wire.span());
  });
  to->decode(wire.span(), sum.view());
  state.counters["nmse"] = nmse(x.view(), sum.view());
  count_bytes(state, bytes);
}

/// The memory traffic of an 8-bit encode without its arithmetic, a byte a number: what is the
/// most that 16-bit views can gain on fp32 where memory is the limit?
template <class Number>
void narrow(const Number* x, std::uint8_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::uint8_t>(x[i]);
}

template <class Number>
void bench_narrow(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0)) / 4;
  const std::vector<Number> x(n, Number{1});
  std::vector<std::uint8_t> out(n);
  time(state, n * sizeof(Number), [&] { narrow(x.data(), out.data(), n); });
  state.counters["nmse"] = out[n / 2] == 1 ? 0 : 1;
  count_bytes(state, 4 * n);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->Arg(64 << 10)->Arg(4 << 20)->Arg(256 << 20)->Unit(benchmark::kMicrosecond);
}

/// Every width, scheme and scale format of the integers, and every small float.
std::vector<std::string> block_codecs() {
  std::vector<std::string> specs{"int8", "int4"};
  for (const char* name : {"int8", "int7", "int6", "int5", "int4", "int3", "int2", "int1"}) {
    for (const char* scheme : {"symmetric", "asymmetric"}) {
      for (const char* scale : {"fp32", "fp16", "bf16", "e8m0"}) {
        const std::string n = name, text = n + ":scheme=" + scheme + ",scale=" + scale;
        if (n == "int1" && scheme[0] == 's') continue;
        specs.push_back(text);
      }
    }
  }
  specs.insert(specs.end(),
               {"int5:block=32,scale=e8m0,scheme=asymmetric", "int4:block=32,scale=e8m0", "fp8",
                "fp8:format=e5m2", "fp8:block=0", "mxfp8", "mxfp8:format=e5m2", "mxfp6",
                "mxfp6:format=e3m2", "mxfp4", "nvfp4", "nvfp4:scale=4over6", "nf4"});
  return specs;
}

void register_codes(const std::string& spec, Dtype dtype) {
  const std::string tail = spec + "/" + std::string(name(dtype));
  sizes(benchmark::RegisterBenchmark(("encode/" + tail).c_str(), bench_encode, spec, dtype));
  sizes(benchmark::RegisterBenchmark(("decode/" + tail).c_str(), bench_decode, spec, dtype));
}

}  // namespace

int main(int argc, char** argv) {
  sizes(benchmark::RegisterBenchmark("memcpy", bench_memcpy));
  sizes(benchmark::RegisterBenchmark("narrow_to_bytes/32-bit", bench_narrow<std::uint32_t>));
  sizes(benchmark::RegisterBenchmark("narrow_to_bytes/16-bit", bench_narrow<std::uint16_t>));
  for (const std::string& spec : block_codecs()) register_codes(spec, Dtype::kF32);
  for (const std::string spec : {"int8", "int4", "bf16", "fp16", "mxfp8", "mxfp4", "nvfp4"}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
      if (dtype != Dtype::kF32 || spec.ends_with("16")) register_codes(spec, dtype);
    }
  }
  for (const std::string spec :
       {"int8:rounding=stochastic", "int4:rounding=stochastic", "int4:rounding=correlated",
        "int5:rounding=stochastic", "int5:rounding=shift,scheme=asymmetric",
        "fp8:rounding=stochastic", "mxfp4:rounding=stochastic", "nvfp4:rounding=stochastic"}) {
    register_codes(spec, Dtype::kF32);
  }
  for (const std::string spec :
       {"hadamard(32)|int4", "hadamard(32)|int8", "hadamard(128,random=yes)|eden|int4",
        "ef|int4", "loco|int4", "topk:ratio=0.01", "ef|topk:ratio=0.01", "sign", "ef|sign",
        "codebook", "lossless"}) {
    register_codes(spec, Dtype::kF32);
  }
  for (const bool fused : {true, false}) {
    for (const auto& [from, to] : {std::pair{"int4", "int4"},
                                   {"int8", "int4"},
                                   {"int8", "int8"},
                                   {"int5", "int5"},
                                   {"mxfp4", "mxfp4"},
                                   {"mxfp8", "mxfp4"},
                                   {"nvfp4", "nvfp4"},
                                   {"fp8", "int4"}}) {
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
