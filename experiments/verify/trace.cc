#include "experiments/verify/trace.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

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
                           const zero::Checkpoint* begin, Trace& trace) {
  const auto model_config = model_of(cell);
  const auto model = zero::make_gpt(model_config);
  zero::EngineConfig config = engine_of(cell, model_config.parameters());
  config.sabotage = sabotage;
  hierarchy::VirtualOptions options;
  options.workers = workers_of(cell);
  zero::Checkpoint end;
  run_virtual(topologies()[static_cast<std::size_t>(cell.topology)], options,
              [&](hierarchy::Transport& transport) {
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
              });
  return end;
}

}  // namespace

Trace run_cell(const Cell& cell, int steps, zero::Sabotage sabotage) {
  Trace trace;
  const auto model = zero::make_gpt(model_of(cell));
  for (const auto& t : model->tensors()) trace.tensors.push_back(t.name);
  if (resume_of(cell) == Resume::kNo || steps < 2) {
    run_steps(cell, steps, sabotage, nullptr, trace);
    return trace;
  }
  const Cell first = resume_of(cell) == Resume::kOwn ? cell : reference_of(cell);
  const zero::Checkpoint saved = run_steps(first, 1, sabotage, nullptr, trace);
  run_steps(cell, steps - 1, sabotage, &saved, trace);
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
