// Virtual ranks on two workers: barriers, message latency, an all-to-all of large messages.
// Times are per operation; read the minimum of several repetitions on a shared machine.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "hierarchy/transport/virtual.h"
#include "quant/memory.h"

namespace zeropp::hierarchy {
namespace {

using SteadyClock = std::chrono::steady_clock;

VirtualOptions two_workers() {
  VirtualOptions options;
  options.workers = 2;
  return options;
}

/// Runs windows of `repeats` operations on every rank and reports rank 0's seconds for one.
/// Cores are often shared, and a worker that lost its core shows in every rank: `best_us`, of
/// the fastest window, is the figure to read.
template <class Setup>
void measure(benchmark::State& state, int ranks, int windows, int repeats, Setup&& setup) {
  const Topology topology({{.name = "node", .fan_out = ranks}});
  double best = 1e30;
  for (auto _ : state) {
    double seconds = 1e30;
    run_virtual(topology, two_workers(), [&](Transport& t) {
      auto operation = setup(t);
      operation();
      t.barrier();
      for (int window = 0; window < windows; ++window) {
        const auto start = SteadyClock::now();
        for (int i = 0; i < repeats; ++i) operation();
        t.barrier();
        const double one =
            std::chrono::duration<double>(SteadyClock::now() - start).count() / repeats;
        if (t.rank() == 0) seconds = std::min(seconds, one);
      }
    });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["best_us"] = best * 1e6;
}

void barrier(benchmark::State& state) {
  measure(state, static_cast<int>(state.range(0)), 400, 20,
          [](Transport& t) { return [&t] { t.barrier(); }; });
}
BENCHMARK(barrier)->Arg(2)->Arg(8)->Arg(1024)->Iterations(5)->UseManualTime()->Unit(
    benchmark::kMicrosecond);

/// One round of small messages around the ring: latency of a dependent hop is a rank's turn.
void ring_message(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  measure(state, ranks, 400, 20, [ranks](Transport& t) {
    return [&t, ranks, mine = std::vector<std::byte>(8),
            theirs = std::vector<std::byte>(8)]() mutable {
      const SendOp s{.peer = (t.rank() + 1) % ranks, .data = mine, .bytes = {.exact = 8}};
      const RecvOp r{.peer = (t.rank() + ranks - 1) % ranks, .into = theirs.data(), .bytes = 8};
      t.exchange({}, {&s, 1}, {&r, 1}).release();
    };
  });
}
BENCHMARK(ring_message)
    ->Arg(2)
    ->Arg(8)
    ->Arg(1024)
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// 16 MiB from every rank to every other: range 0 copies, range 1 borrows views and sums
/// nothing.
void all_to_all(benchmark::State& state) {
  constexpr int ranks = 8;
  constexpr std::size_t block = std::size_t{16} << 20;
  const bool views = state.range(0) != 0;
  measure(state, ranks, 3, 1, [views](Transport& t) {
    quant::Buffer out(nullptr, quant::MemoryKind::kComm, block * ranks);
    quant::Buffer in(nullptr, quant::MemoryKind::kComm, views ? 0 : block * ranks);
    std::memset(out.data(), t.rank(), out.bytes());
    return [&t, views, out = std::move(out), in = std::move(in)]() mutable {
      std::vector<SendOp> sends;
      std::vector<RecvOp> recvs;
      for (int p = 0; p < ranks; ++p) {
        if (p == t.rank()) continue;
        const std::size_t at = static_cast<std::size_t>(p) * block;
        sends.push_back(
            {.peer = p, .data = out.span().subspan(at, block), .bytes = {.exact = block}});
        recvs.push_back({.peer = p, .into = views ? nullptr : in.data() + at, .bytes = block});
      }
      Pending pending = t.exchange({}, sends, recvs);
      pending.wait();
      for (std::size_t i = 0; i < recvs.size(); ++i) {
        if (pending.received(i).back() != static_cast<std::byte>(recvs[i].peer)) {
          throw std::runtime_error("wrong bytes");
        }
      }
      pending.release();
    };
  });
  if (views) return;  // Nothing moves.
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(block) * ranks *
                          (ranks - 1));
}
BENCHMARK(all_to_all)
    ->Arg(0)
    ->Arg(1)
    ->UseManualTime()
    ->Iterations(2)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace zeropp::hierarchy

BENCHMARK_MAIN();
