#include "experiments/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "experiments/job_checkpoint.h"
#include "experiments/rank_result.h"
#include "hierarchy/transport/mpi.h"
#include "hierarchy/transport/virtual.h"

namespace zeropp::experiments {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct JobContext {
  const VariantConfig& variant;
  const zero::EngineConfig engine;
  const zero::Model& model;
  const zero::Dataset& data;
  const std::atomic<int>& stop;
  const JobHooks& hooks;
  const bool processes;  ///< One a rank: nothing is shared with rank 0.
};

class RankJob {
 public:
  RankJob(const JobContext& job, hierarchy::Transport& transport, RankResult& result,
          JobOutcome& outcome)
      : job_(job),
        transport_(transport),
        comm_{transport, &memory_},
        engine_(comm_, job.model, memory_, job.engine, &job.data),
        result_(result),
        outcome_(outcome) {
    result_.memory.formula = engine_.formula();
  }

  void run() {
    const std::uint64_t done = load();
    memory_.reset_peaks();
    counted_ = transport_.ledger();
    start_clock();
    for (std::uint64_t s = done + 1; s <= job_.variant.steps; ++s) step(s);
    stop_clock();
    finish();
  }

 private:
  bool root() const { return transport_.rank() == 0; }
  bool saves() const { return job_.variant.checkpoint_every != 0; }

  /// Steps that a checkpoint has done.
  std::uint64_t load() {
    if (const JobCheckpoint* c = job_.hooks.resume) {
      (void)engine_.load(c->training);
      earlier_ = c->ranks.at(static_cast<std::size_t>(transport_.rank()));
      if (!root()) return c->training.step;
      outcome_.steps = c->steps;
      outcome_.wall_seconds = c->wall_seconds;
      outcome_.unreferenced_gathers = c->unreferenced_gathers;
      if (c->training.step == job_.variant.steps) {  // But for the final evaluation.
        last_ = std::move(outcome_.steps.back());
        outcome_.steps.pop_back();
      }
      return c->training.step;
    }
    if (job_.hooks.start == nullptr) return 0;
    auto notes = engine_.load(*job_.hooks.start);
    if (root()) outcome_.load_notes = std::move(notes);
    return job_.hooks.start->step;
  }

  /// What this rank has measured, with what it did before it was resumed.
  RankResult measured(std::uint64_t model_states) const {
    RankResult r = result_;
    r.memory.model_states = model_states;
    r.memory.peak = memory_.peak_total();
    r.memory.by_kind = memory_.peak_by_kind();
    r.ledger = closed_;
    r.ledger.add(transport_.ledger().since(counted_));
    r.add(earlier_);
    return r;
  }

  /// All ranks. Rank 0 has written it when they go on. `before`: what is measured so far; null:
  /// with what the checkpoint itself sends, as a run that nobody stops would have it.
  void save(const RankResult* before) {
    JobCheckpoint c;
    c.training = engine_.save();
    c.ranks.resize(static_cast<std::size_t>(transport_.size()));
    c.ranks[static_cast<std::size_t>(transport_.rank())] =
        before != nullptr ? *before : measured(memory_.peak_model_states());
    // How results come together depends on the transport, and is counted nowhere.
    closed_.add(transport_.ledger().since(counted_));
    gather_results(transport_, c.ranks);
    counted_ = transport_.ledger();
    if (root()) {
      c.steps = outcome_.steps;
      c.wall_seconds = outcome_.wall_seconds;
      c.unreferenced_gathers = outcome_.unreferenced_gathers + engine_.unreferenced_gathers();
      job_.hooks.on_checkpoint(c);
    }
    transport_.barrier();
  }

  /// Between two steps: a checkpoint where one is due, or somebody wants the run to stop.
  void maybe_save(std::uint64_t number) {
    const double asked = root() && job_.stop.load() != 0 ? 1 : 0;
    const bool stopping = hierarchy::sum_scalar(comm_, hierarchy::Phase::kCheckpoint, asked,
                                                quant::Role::kControl) != 0;
    const bool due = number % job_.variant.checkpoint_every == 0;
    if (!stopping && !due) return;
    stop_clock();
    if (due) {
      save(nullptr);
    } else {
      const RankResult before = measured(memory_.peak_model_states());
      save(&before);
    }
    if (stopping) {
      if (!root() && !job_.processes) return transport_.barrier();  // Rank 0's end ends it.
      throw Interrupted(fmt::format("after step {}, which is in a checkpoint", number));
    }
    start_clock();
  }

  void step(std::uint64_t number) {
    engine_.reset_times();
    const std::uint64_t calls = transport_.ledger().collectives();
    const auto start = Clock::now();
    StepRecord record{.step = number, .tokens = number * tokens_per_step()};
    record.result = engine_.train_step();
    record.seconds = since(start);
    const zero::EngineTimes times = engine_.times();
    result_.math += times.math;
    result_.codec += times.codec;
    result_.collectives += transport_.ledger().collectives() - calls;
    result_.error.add(record.result.gradient_error);
    result_.underflow += record.result.underflow;
    if (!std::isfinite(record.result.loss)) return give_up(std::move(record));
    const std::uint64_t every = job_.variant.eval_every;
    if (every != 0 && number % every == 0 && number != job_.variant.steps) {
      record.val_loss = evaluate_between_steps();
    }
    const bool last = number == job_.variant.steps;
    if (root() && last) {
      last_ = std::move(record);  // Waits for the final evaluation.
    } else if (root()) {
      report(std::move(record));
    }
    if (saves() && !last) maybe_save(number);
  }

  void report(StepRecord record) {
    record.skipped_steps = engine_.skipped_steps();
    job_.hooks.on_step(record);
    outcome_.steps.push_back(std::move(record));
    if (!saves() && job_.stop.load() != 0)
      throw Interrupted(fmt::format("after step {}", outcome_.steps.back().step));
  }

  /// Ends the run: what follows could only be noise. All ranks have the same loss.
  void give_up(StepRecord record) {
    if (!root() && !job_.processes) return transport_.barrier();  // Rank 0's error ends it.
    outcome_.failure = fmt::format("[train] expected a finite loss, found {} at step {}",
                                   record.result.loss, record.step);
    const std::string failure = outcome_.failure;
    if (root()) report(std::move(record));
    throw std::runtime_error(failure);
  }

  std::uint64_t tokens_per_step() const {
    return static_cast<std::uint64_t>(job_.engine.gas) *
           static_cast<std::uint64_t>(job_.engine.micro_batch) *
           static_cast<std::uint64_t>(job_.engine.seq) *
           static_cast<std::uint64_t>(transport_.size());
  }

  /// The clock of the training steps. Ranks that share a worker leave a barrier one after the
  /// other, so rank 0 looks at its watch between two of them: nobody works meanwhile.
  void start_clock() {
    transport_.barrier();
    if (root()) lap_ = Clock::now();
    transport_.barrier();
  }
  void stop_clock() {
    transport_.barrier();
    if (root()) outcome_.wall_seconds += since(lap_);
    transport_.barrier();
  }

  double evaluate_between_steps() {
    stop_clock();
    const double loss = engine_.evaluate(job_.variant.eval_windows);
    start_clock();
    return loss;
  }

  void finish() {
    const std::uint64_t model_states = memory_.peak_model_states();
    const RankResult trained = measured(model_states);
    const double loss = engine_.evaluate(job_.variant.eval_windows);
    const bool has_deployed = engine_.has_deployed_weights();
    const double deployed =
        has_deployed ? engine_.evaluate(job_.variant.eval_windows, true) : loss;
    const std::string sha = engine_.state_sha256();
    const RankResult all = measured(model_states);
    if (root()) {
      outcome_.val_loss = loss;
      outcome_.val_loss_deployed = deployed;
      outcome_.has_deployed = has_deployed;
      outcome_.state_sha256 = sha;
      outcome_.routes = engine_.routes();
      last_->val_loss = loss;
      report(std::move(*last_));
    }
    if (saves()) save(&trained);  // A resumed job evaluates again.
    if (root()) outcome_.unreferenced_gathers += engine_.unreferenced_gathers();
    result_ = all;
  }

  const JobContext& job_;
  hierarchy::Transport& transport_;
  zero::MemoryLedger memory_;
  hierarchy::Comm comm_;
  zero::Engine engine_;
  RankResult& result_;
  JobOutcome& outcome_;
  /// The ledger has sections: at `counted_` the one in hand began, `closed_` are those before.
  hierarchy::Ledger counted_, closed_;
  RankResult earlier_;  ///< Before this job was resumed.
  Clock::time_point lap_;
  std::optional<StepRecord> last_;
};

using RankBody = std::function<void(hierarchy::Transport&)>;

/// Runs the body on all ranks; the result is the number of threads or processes.
int run_ranks(const RunConfig& run, const std::atomic<int>& stop, const RankBody& body) {
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(run.timeout_s * 1000));
  if (run.transport == "mpi") {
    run_mpi(run.topology, {.timeout = timeout, .stop = &stop}, body);
    return run.topology.ranks();
  }
  const hierarchy::VirtualOptions options{.workers = run.workers, .timeout = timeout};
  run_virtual(run.topology, options, body);
  return hierarchy::virtual_workers(run.topology, options);
}

}  // namespace

JobOutcome run_job(const RunConfig& run, const VariantConfig& variant, std::uint64_t seed,
                   const zero::Dataset& data, const std::atomic<int>& stop,
                   const JobHooks& hooks) {
  zero::EngineConfig engine = variant.engine;
  engine.seed = seed;
  const auto model = zero::make_gpt(variant.model);
  const bool processes = run.transport == "mpi";
  const JobContext job{variant, engine, *model, data, stop, hooks, processes};

  JobOutcome outcome;
  std::vector<RankResult> ranks(static_cast<std::size_t>(run.topology.ranks()));
  try {
    outcome.workers = run_ranks(run, stop, [&](hierarchy::Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      RankJob(job, transport, ranks[rank], outcome).run();
      if (processes) gather_results(transport, ranks);
    });
  } catch (const std::exception& e) {
    if (stop.load() != 0) throw Interrupted(e.what());
    if (!outcome.failure.empty()) throw std::runtime_error(outcome.failure);
    throw;
  }
  outcome.collectives = ranks[0].collectives;
  for (RankResult& r : ranks) {
    outcome.ledgers.push_back(std::move(r.ledger));
    outcome.memory.push_back(r.memory);
    outcome.gradient_error.add(r.error);
    outcome.underflow += r.underflow;
    outcome.math_seconds += r.math;
    outcome.codec_seconds += r.codec;
  }
  return outcome;
}

}  // namespace zeropp::experiments
