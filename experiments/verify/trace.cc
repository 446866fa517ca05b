#include "experiments/verify/trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "experiments/checkpoint/files.h"
#include "hierarchy/transport/virtual.h"
#include "quant/rng.h"

namespace zeropp::experiments::verify {
namespace {

/// Text that needs no file: bytes with a skewed, learnable distribution.
const zero::Dataset& text() {
  static const zero::Dataset data = [] {
    zero::Dataset d;
    d.name = "verify";
    const quant::Philox random({.seed = 3, .purpose = quant::Purpose::kData});
    for (std::uint64_t i = 0; i < 8192; ++i) {
      const std::uint32_t w = random.word(i);
      d.bytes.push_back(static_cast<std::uint8_t>((w % 7) * (w / 7 % 11) + 32));
    }
    d.train_bytes = 7000;
    return d;
  }();
  return data;
}

}  // namespace

namespace {

/// Trains from `begin` (null: from the start) and returns what training is after `steps` more.
zero::Checkpoint run_steps(const Cell& cell, int steps, zero::Sabotage sabotage,
                           const RankPlace& place, const zero::Checkpoint* begin,
                           Trace& trace) {
  const auto model_config = model_of(cell);
  const auto model = zero::make_gpt(model_config);
  zero::EngineConfig config = engine_of(cell, model_config.parameters());
  config.sabotage = sabotage;
  zero::Checkpoint end;
  const auto body = [&](hierarchy::Transport& transport) {
    zero::MemoryLedger memory;
    hierarchy::Comm comm{transport, &memory};
    zero::Engine engine(comm, *model, memory, config, &text());
    if (begin != nullptr) (void)engine.load(*begin);
    for (int s = 0; s < steps; ++s) {
      const double loss = engine.train_step().loss;
      auto state = engine.gather_state();
      if (comm.rank() != 0) continue;
      trace.losses.push_back(loss);
      trace.states.push_back(std::move(state));
    }
    zero::Checkpoint saved = engine.save();
    if (comm.rank() == 0) end = std::move(saved);
  };
  const hierarchy::Topology& topology = topologies()[static_cast<std::size_t>(cell.topology)];
  if (place.mpi != nullptr) {
    run_mpi(topology, {.timeout = place.timeout}, body);
  } else {
    run_virtual(topology, {.workers = workers_of(cell), .timeout = place.timeout}, body);
  }
  return end;
}

/// Rank 0's checkpoint, on all processes.
zero::Checkpoint share(const zero::Checkpoint& saved, const zero::GptConfig& model,
                       const RankPlace& place) {
  if (place.mpi == nullptr) return saved;
  namespace fs = std::filesystem;
  const auto mine = static_cast<std::uint64_t>(::getpid());
  const fs::path dir =
      fs::temp_directory_path() /
      fmt::format("zeropp-verify-{}", place.mpi->from_root(mine, place.timeout));
  if (place.root()) write_checkpoint(dir, model, saved, nullptr);
  const auto all_here = [&] {  // A run of nothing is a barrier.
    run_mpi(hierarchy::Topology::two_level(1, place.mpi->size()), {.timeout = place.timeout},
            [](hierarchy::Transport& t) { t.barrier(); });
  };
  all_here();
  zero::Checkpoint read = read_checkpoint(dir, model);
  all_here();
  std::error_code ignored;
  if (place.root()) fs::remove_all(dir, ignored);
  return read;
}

}  // namespace

Trace run_cell(const Cell& cell, int steps, zero::Sabotage sabotage, const RankPlace& place) {
  Trace trace;
  const auto model = zero::make_gpt(model_of(cell));
  for (const auto& t : model->tensors()) trace.tensors.push_back(t.name);
  if (resume_of(cell) == Resume::kNo || steps < 2) {
    run_steps(cell, steps, sabotage, place, nullptr, trace);
    return trace;
  }
  const Cell first = resume_of(cell) == Resume::kOwn ? cell : reference_of(cell);
  const zero::Checkpoint saved =
      share(run_steps(first, 1, sabotage, place, nullptr, trace), model_of(cell), place);
  run_steps(cell, steps - 1, sabotage, place, &saved, trace);
  return trace;
}

std::optional<std::string> first_difference(const Trace& expected, const Trace& found) {
  for (std::size_t s = 0; s < expected.losses.size(); ++s) {
    if (std::bit_cast<std::uint64_t>(expected.losses[s]) !=
        std::bit_cast<std::uint64_t>(found.losses.at(s))) {
      return fmt::format("step {}: loss {:.17g}, expected {:.17g}", s, found.losses[s],
                         expected.losses[s]);
    }
    for (std::size_t t = 0; t < expected.tensors.size(); ++t) {
      const auto& a = expected.states[s][t];
      const auto& b = found.states.at(s).at(t);
      if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) continue;
      std::size_t i = 0;
      while (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) ++i;
      const std::size_t numel = a.size() / 3;
      constexpr const char* parts[] = {"master", "m", "v"};
      return fmt::format("step {}: tensor {}, element {} of {}: {:.9g}, expected {:.9g}", s,
                         expected.tensors[t], i % numel, parts[i / numel], b[i], a[i]);
    }
  }
  return std::nullopt;
}

}  // namespace zeropp::experiments::verify
