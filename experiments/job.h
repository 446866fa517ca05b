#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/run_config.h"
#include "hierarchy/ledger.h"
#include "quant/metrics.h"
#include "zero/data.h"
#include "zero/engine.h"
#include "zero/memory_ledger.h"

namespace zeropp::experiments {

/// One optimizer step as metrics.jsonl has it.
struct StepRecord {
  std::uint64_t step = 0;    ///< From 1.
  std::uint64_t tokens = 0;  ///< Seen so far, all ranks.
  zero::StepResult result{};
  std::uint64_t skipped_steps = 0;   ///< So far.
  double seconds = 0;                ///< Wall time of this step.
  std::optional<double> val_loss{};  ///< Where it was evaluated.
};

/// What one rank held.
struct RankMemory {
  zero::StateBytes formula;
  std::uint64_t model_states = 0;  ///< Peak in training steps.
  std::uint64_t peak = 0;
  zero::MemoryLedger::ByKind by_kind{};
};

/// Everything that one variant and seed measured.
struct JobOutcome {
  std::vector<StepRecord> steps;
  double val_loss = 0, val_loss_deployed = 0;
  bool has_deployed = false;
  std::string state_sha256;
  std::vector<hierarchy::Ledger> ledgers;      ///< One a rank, since the first step.
  std::vector<RankMemory> memory;              ///< One a rank.
  std::uint64_t collectives = 0;               ///< Of one rank, in all training steps.
  quant::ErrorSums gradient_error;             ///< Over all ranks and steps.
  std::uint64_t underflow = 0;                 ///< Over all ranks and steps.
  double math_seconds = 0, codec_seconds = 0;  ///< Worker-seconds, all ranks, training steps.
  double wall_seconds = 0;                     ///< Training steps.
  int workers = 1;
  std::vector<zero::Route> routes;
  std::uint64_t unreferenced_gathers = 0;  ///< Engine::unreferenced_gathers.
  std::vector<std::string> load_notes;     ///< Engine::load of JobHooks::start.
  std::string failure;  ///< Why rank 0 gave up, empty unless it did; run_job throws it.
};

/// Thrown out of a job that was asked to stop; says what it was doing.
struct Interrupted : std::runtime_error {
  explicit Interrupted(const std::string& where) : std::runtime_error(where) {}
};

/// Called on rank 0 after every step.
using OnStep = std::function<void(const StepRecord&)>;

struct JobCheckpoint;

/// Where a job begins, and what it tells on its way.
struct JobHooks {
  OnStep on_step;
  /// On rank 0, every variant.checkpoint.every steps, at the end, and before Interrupted.
  std::function<void(const JobCheckpoint&)> on_checkpoint{};
  const JobCheckpoint* resume = nullptr;    ///< Of the same job: it ends as if never stopped.
  const zero::Checkpoint* start = nullptr;  ///< Of another one: weights and what else fits.
};

/// Trains one variant with one seed on the run's transport. On mpi every process calls it, one
/// a rank, and the outcome is whole on rank 0 alone. Throws UsageError, TransportError,
/// std::runtime_error (a non-finite loss), Interrupted once `stop` is true.
JobOutcome run_job(const RunConfig& run, const VariantConfig& variant, std::uint64_t seed,
                   const zero::Dataset& data, const std::atomic<int>& stop,
                   const JobHooks& hooks);
inline JobOutcome run_job(const RunConfig& run, const VariantConfig& variant,
                          std::uint64_t seed, const zero::Dataset& data,
                          const std::atomic<int>& stop, const OnStep& on_step) {
  return run_job(run, variant, seed, data, stop, JobHooks{.on_step = on_step});
}

}  // namespace zeropp::experiments
