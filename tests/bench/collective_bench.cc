// Collectives of 8 ranks (2 nodes of 4) over one fp32 tensor of 16 MiB. A row is the time
// between two barriers as rank 0 sees it; `wrong` counts elements that are not the known
// answer, which must be 0; `GB/s` is the tensor's bytes times ranks over the time.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "hierarchy/collectives.h"
#include "hierarchy/transport/virtual.h"
#include "quant/registry.h"

namespace zeropp::hierarchy {
namespace {

constexpr std::size_t kElems = std::size_t{4} << 20;
constexpr int kRanks = 8;

/// +1 or -1, the same on every rank: the mean is the input, and symmetric codecs keep it.
float sign_of(std::size_t i) { return (i * 0x9E3779B97F4A7C15ULL >> 63) != 0 ? 1.0F : -1.0F; }

struct Data {
  std::vector<std::vector<float>> in, out;
  Data() : in(kRanks, std::vector<float>(kElems)), out(kRanks, std::vector<float>(kElems)) {
    for (auto& x : in) {
      for (std::size_t i = 0; i < kElems; ++i) x[i] = sign_of(i);
    }
  }
  static Data& get() {
    static Data data;
    return data;
  }
};

enum class Call { kReduceScatter, kAllReduce, kAllGather };

std::uint64_t wrong(Call call) {
  std::uint64_t count = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& y = Data::get().out[static_cast<std::size_t>(rank)];
    const std::size_t n = call == Call::kReduceScatter ? kElems / kRanks : kElems;
    const std::size_t first =
        call == Call::kReduceScatter ? static_cast<std::size_t>(rank) * n : 0;
    for (std::size_t i = 0; i < n; ++i) count += y[i] == sign_of(first + i) ? 0 : 1;
  }
  return count;
}

void run_once(Comm& comm, Call call, Algorithm algorithm,
              std::span<const quant::Codec* const> codecs) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  const quant::ConstView in = quant::view(Data::get().in[rank]);
  const quant::MutView out = quant::mut_view(Data::get().out[rank]);
  const std::size_t chunk = kElems / kRanks;
  const CallOptions options{.algorithm = algorithm};
  if (call == Call::kAllGather) {
    const quant::Codec* codec = codecs.empty() ? nullptr : codecs[0];
    const GatherTensor tensor{0, kElems, in.slice(rank * chunk, chunk), out, codec};
    all_gather(comm, options, std::span(&tensor, 1));
  } else if (call == Call::kAllReduce) {
    const ReduceTensor tensor{0, kElems, in, out, codecs};
    all_reduce(comm, options, {}, std::span(&tensor, 1));
  } else {
    const ReduceTensor tensor{0, kElems, in, out.slice(0, chunk), codecs};
    reduce_scatter(comm, options, {}, std::span(&tensor, 1));
  }
}

void collective(benchmark::State& state, Call call, Algorithm algorithm,
                const std::vector<std::string>& specs) {
  std::vector<quant::CodecPtr> owned;
  std::vector<const quant::Codec*> codecs;
  for (const std::string& spec : specs) {
    owned.push_back(quant::make_codec(spec));
    codecs.push_back(owned.back().get());
  }
  for (auto& y : Data::get().out) std::fill(y.begin(), y.end(), 0.0F);
  const Topology topology = Topology::two_level(2, kRanks / 2);
  run_virtual(topology, {}, [&](Transport& transport) {
    Comm comm{.transport = transport};
    const auto timed = [&] {
      transport.barrier();
      const auto begin = std::chrono::steady_clock::now();
      run_once(comm, call, algorithm, codecs);
      transport.barrier();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    timed();  // Warm: pages are there.
    if (transport.rank() == 0) {
      for (auto _ : state) {
        sum_scalar(comm, Phase::kOther, 1.0);  // "One more", to all ranks.
        state.SetIterationTime(timed());
      }
      sum_scalar(comm, Phase::kOther, 0.0);
    } else {
      while (sum_scalar(comm, Phase::kOther, 0.0) > 0) timed();
    }
  });
  state.counters["wrong"] = static_cast<double>(wrong(call));
  state.counters["GB/s"] =
      benchmark::Counter(4.0 * kElems * kRanks * 1e-9 * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}

void add(const std::string& name, Call call, Algorithm algorithm,
         const std::vector<std::string>& specs = {}) {
  benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { collective(state, call, algorithm, specs); })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

const bool kRegistered = [] {
  add("reduce_scatter/all_to_all", Call::kReduceScatter, Algorithm::kAllToAll);
  add("reduce_scatter/hierarchical", Call::kReduceScatter, Algorithm::kHierarchical);
  add("reduce_scatter/ring", Call::kReduceScatter, Algorithm::kRing);
  add("reduce_scatter/hierarchical/int8,int4", Call::kReduceScatter, Algorithm::kHierarchical,
      {"int8", "int4"});
  add("reduce_scatter/hierarchical/int4,int4", Call::kReduceScatter, Algorithm::kHierarchical,
      {"int4", "int4"});
  add("all_reduce/hierarchical", Call::kAllReduce, Algorithm::kHierarchical);
  add("all_reduce/all_to_all", Call::kAllReduce, Algorithm::kAllToAll);
  add("all_reduce/ring", Call::kAllReduce, Algorithm::kRing);
  add("all_reduce/hierarchical/int8,int4", Call::kAllReduce, Algorithm::kHierarchical,
      {"int8", "int4"});
  add("all_gather/hierarchical", Call::kAllGather, Algorithm::kHierarchical);
  add("all_gather/ring", Call::kAllGather, Algorithm::kRing);
  add("all_gather/hierarchical/int8", Call::kAllGather, Algorithm::kHierarchical, {"int8"});
  return true;
}();

}  // namespace
}  // namespace zeropp::hierarchy

BENCHMARK_MAIN();
