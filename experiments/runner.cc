#include "experiments/runner.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <stop_token>
#include <thread>

#include "experiments/checkpoint/files.h"
#include "experiments/checkpoint/job_files.h"
#include "experiments/job.h"
#include "experiments/job_result.h"
#include "experiments/job_store.h"
#include "experiments/processes.h"
#include "experiments/progress.h"
#include "experiments/run_lock.h"
#include "experiments/summary.h"
#include "experiments/sweep/report.h"
#include "experiments/tensorboard.h"
#include "hierarchy/transport/mpi.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

namespace fs = std::filesystem;

std::atomic<int> stop_signal{0};

std::atomic<std::time_t> stop_time{0};
/// Where this process was when the signal came, if it is one of several.
std::atomic<hierarchy::Collective> stop_collective{hierarchy::Collective::kOther};
std::atomic<std::uint64_t> stop_sequence{0};

/// A second signal ends the program at once, unless it is an echo of the first: timeout(1) and
/// terminals signal the process and its group.
void on_signal(int signal) {
  const std::time_t now = std::time(nullptr);
  if (stop_signal != 0 && now > stop_time + 1) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  stop_time = now;
  stop_collective = hierarchy::last_mpi_call().collective();
  stop_sequence = hierarchy::last_mpi_call().sequence();
  stop_signal = signal;
}

/// The first SIGINT or SIGTERM ends the run after the step in hand.
class StopOnSignal {
 public:
  StopOnSignal() {
    stop_signal = 0;
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  ~StopOnSignal() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  struct sigaction old_int_ {
  }, old_term_{};
};

std::string one_line(std::string text) {
  for (auto at = text.find('\n'); at != std::string::npos; at = text.find('\n', at)) {
    text.replace(at, 1, "; ");
  }
  return text;
}

/// Speaks for a dead rank 0: mpirun sends the others SIGTERM and, a second later, SIGKILL,
/// which may come before this process' rank looks at the signal.
class Survivor {
 public:
  Survivor(const JobStore& store, int rank)
      : thread_([&store, rank](const std::stop_token& end) {
          while (stop_signal == 0 && !end.stop_requested()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
          if (stop_signal != 0) store.speak_for_root("killed", where(rank));
        }) {}

  static std::string where(int rank) {
    return fmt::format("signal {} to rank {} in {}, sequence {}", stop_signal.load(), rank,
                       hierarchy::name(stop_collective.load()), stop_sequence.load());
  }

 private:
  std::jthread thread_;
};

class Runner {
 public:
  Runner(const RunConfig& run, const zero::Dataset& data, const Processes& processes,
         fs::path dir, std::ostream& err, bool terminal, bool fresh)
      : run_(run),
        data_(data),
        processes_(processes),
        dir_(std::move(dir)),
        err_(err),
        fresh_(fresh),
        progress_(processes.root() ? err : nowhere_, terminal && processes.root(),
                  total_steps(run), run.variants.size() * run.seeds.size()) {}

  /// All jobs, seed by seed, so that the first seed's comparison is there early.
  std::vector<std::vector<JobEnd>> run_all() {
    std::vector<std::vector<JobEnd>> ends(run_.variants.size());
    for (const std::uint64_t seed : run_.seeds) {
      for (std::size_t v = 0; v < run_.variants.size(); ++v) {
        ends[v].push_back(run_one(run_.variants[v], seed));
        if (stop_signal != 0) return ends;
      }
    }
    return ends;
  }

  bool failed() const { return failures_ > 0; }
  bool failed_by_usage_alone() const { return failures_ > 0 && failures_ == usage_failures_; }

 private:
  static std::uint64_t total_steps(const RunConfig& run) {
    std::uint64_t steps = 0;
    for (const VariantConfig& v : run.variants) steps += v.steps * run.seeds.size();
    return steps;
  }

  JobEnd run_one(const VariantConfig& variant, std::uint64_t seed) {
    JobStore store(dir_, variant, seed);
    const std::string name = fmt::format("{} seed {}", variant.name, seed);
    std::optional<Json> finished;
    if (processes_.decide([&] {
          if (!fresh_) finished = store.finished(data_.sha256, run_.topology);
          return finished.has_value();
        })) {
      progress_.skip_job(name, variant.steps);
      const std::string result = finished ? to_text(*finished) : "";
      return {.seed = seed, .status = "ok", .message = "", .result = result};
    }
    progress_.begin_job(name, variant.steps);
    const JobIdentity identity{variant, seed, data_.sha256};
    bool begun = false;
    std::optional<Survivor> survivor;
    if (!processes_.root()) survivor.emplace(store, processes_.rank());
    std::optional<TensorboardWriter> board;
    try {
      const std::optional<JobCheckpoint> resume = resume_point(store, identity, name);
      std::optional<zero::Checkpoint> start;
      if (!resume && !variant.load.empty()) start = start_of(variant);
      if (processes_.root()) {
        // They would be an earlier run's until this one ends.
        for (const char* summary : {"summary.json", "summary.md", "summary.csv"}) {
          fs::remove(dir_ / summary);
        }
        if (!resume) remove_job_checkpoints(store.dir());
        store.begin();
        remove_event_files(store.dir());
        if (variant.tensorboard) {
          store.remembering(
              [&] { board.emplace(tensorboard_dir(store.dir(), variant, seed), variant); });
        }
      }
      begun = true;
      const OnStep on_step = [&](const StepRecord& record) {
        store.append_metrics(metrics_line(record));
        if (board) store.remembering([&] { board->step(record); });
        progress_.step(record.step, record.result.loss);
      };
      if (resume && processes_.root()) {
        for (const StepRecord& record : resume->steps) {
          if (record.step != variant.steps) on_step(record);
        }
      }
      const JobHooks hooks{.on_step = on_step,
                           .on_checkpoint =
                               [&](const JobCheckpoint& c) {
                                 store.remembering([&] {
                                   write_job_checkpoint(store.dir(), identity, c,
                                                        variant.checkpoint_keep);
                                 });
                               },
                           .resume = resume ? &*resume : nullptr,
                           .start = start ? &*start : nullptr};
      const JobOutcome outcome = run_job(run_, variant, seed, data_, stop_signal, hooks);
      if (!processes_.root())
        return {.seed = seed, .status = "ok", .message = "", .result = ""};
      const Json result = job_result(run_, variant, seed, data_, outcome);
      if (board) store.remembering([&] { board->end(true); });
      store.commit(result, traffic_lines(run_, outcome));
      progress_.end_job(fmt::format("val loss {:.4f}", outcome.val_loss));
      return {.seed = seed, .status = "ok", .message = "", .result = to_text(result)};
    } catch (const Interrupted& e) {
      const auto text = fmt::format("signal {}: {}", stop_signal.load(), one_line(e.what()));
      if (processes_.root()) store.fail("killed", text);
      progress_.end_job("killed");
      return {.seed = seed, .status = "killed", .message = "", .result = ""};
    } catch (const std::exception& e) {
      const bool usage = dynamic_cast<const UsageError*>(&e) != nullptr;
      try {
        if (board) board->end(false);
      } catch (const UsageError&) {  // What ended the job is what counts.
      }
      JobEnd end = failed_job(store, name, seed, e.what(), usage);
      // Rank 0 may be what failed.
      if (!processes_.root()) store.speak_for_root("error", end.message);
      // Others wait for this one, or messages may be in flight.
      const bool apart = !begun || dynamic_cast<const TransportError*>(&e) != nullptr;
      if (processes_.several() && apart) processes_.end_all(1);
      return end;
    }
  }

  /// Where an interrupted run of this job goes on; the same on all processes.
  std::optional<JobCheckpoint> resume_point(const JobStore& store, const JobIdentity& identity,
                                            const std::string& name) {
    std::string why_not;
    std::optional<JobCheckpoint> found;
    if (fresh_) return std::nullopt;
    if (processes_.root()) found = newest_job_checkpoint(store.dir(), identity, why_not);
    if (!why_not.empty()) {
      err_ << fmt::format("zeropp: {}: not resumed from {}\n", name, why_not) << std::flush;
    }
    if (!processes_.decide([&] { return found.has_value(); })) return std::nullopt;
    if (!processes_.root()) found = newest_job_checkpoint(store.dir(), identity, why_not);
    if (!found) {
      throw UsageError("checkpoint", "the files that rank 0 reads", "none on this process");
    }
    if (processes_.root()) {
      err_ << fmt::format("zeropp: {}: goes on after step {}\n", name, found->training.step)
           << std::flush;
    }
    return found;
  }

  static zero::Checkpoint start_of(const VariantConfig& variant) {
    zero::Checkpoint start =
        load_checkpoint(variant.load, variant.model, variant.load_weights_only);
    if (start.step >= variant.steps) {
      throw UsageError("zeropp.steps",
                       fmt::format("more than the {} of {}", start.step, variant.load),
                       std::to_string(variant.steps));
    }
    return start;
  }

  /// A file that could not be written counts before what came of it, and is no usage error.
  JobEnd failed_job(JobStore& store, const std::string& name, std::uint64_t seed,
                    const std::string& what, bool usage) {
    ++failures_;
    const bool writing = !store.write_error().empty();
    if (usage && !writing) ++usage_failures_;
    const std::string message = one_line(writing ? store.write_error() : what);
    if (processes_.root()) store.fail("error", message);
    progress_.end_job("error");
    // What other ranks alone know is in their transport's errors; what they were told is known.
    const std::string failed = "[mpi] rank ";
    const bool told = message.starts_with(failed) &&
                      !message.starts_with(fmt::format("{}{} ", failed, processes_.rank()));
    if (processes_.root() || (message.starts_with("[mpi]") && !told)) {
      err_ << fmt::format("zeropp: {}: {}\n", name, message) << std::flush;
    }
    return {.seed = seed, .status = "error", .message = message, .result = ""};
  }

  const RunConfig& run_;
  const zero::Dataset& data_;
  const Processes& processes_;
  fs::path dir_;
  std::ostream& err_;
  bool fresh_;
  std::ostream nowhere_{nullptr};
  Progress progress_;
  int failures_ = 0, usage_failures_ = 0;
};

/// Everything that can be known before a folder is made.
void check_data(const RunConfig& run, const zero::Dataset& data) {
  for (const VariantConfig& v : run.variants) {
    const auto seq = static_cast<std::size_t>(v.engine.seq);
    if (data.train_bytes < seq + 1) {
      throw UsageError("zeropp.data", fmt::format("more than {} bytes to train on (seq)", seq),
                       fmt::format("{} in '{}'", data.train_bytes, data.name));
    }
    const std::uint64_t windows = zero::validation_windows(data, v.engine.seq);
    if (windows < v.eval_windows) {
      throw UsageError(
          "zeropp.eval.windows",
          fmt::format("at most the {} held-out windows of {} tokens", windows, seq),
          std::to_string(v.eval_windows));
    }
  }
}

void check_writable(const fs::path& dir) {
  make_directory(dir);
  const fs::path probe = dir / ".write-test";
  write_atomic(probe, "");
  fs::remove(probe);
}

}  // namespace

std::string default_out(const std::string& stem, const std::string& hash) {
  return fmt::format("results/runs/{}-{}", stem, hash.substr(0, 8));
}

namespace {

/// The run itself; every process is in here.
int run_jobs(const RunOptions& options, const RunConfig& run, const zero::Dataset& data,
             const Processes& processes, std::ostream& out, std::ostream& err) {
  const fs::path dir = options.out.empty() ? default_out(run.stem, run.hash) : options.out;
  Runner runner(run, data, processes, dir, err, options.terminal, options.fresh);
  if (processes.root()) write_atomic(dir / "sweep.json", to_text(jobs_json(run)) + "\n");
  const auto ends = runner.run_all();
  if (const int signal = stop_signal; signal != 0) {
    if (processes.root()) {
      err << fmt::format("zeropp: stopped by signal {}; the same command goes on from here\n",
                         signal)
          << std::flush;
    }
    if (processes.several()) processes.end_all(128 + signal);
    return 128 + signal;
  }
  if (processes.root()) {
    const Json summary = make_summary(run, data, ends);
    try {
      write_atomic(dir / "summary.md", summary_markdown(summary, run.stem));
      write_atomic(dir / "summary.csv", summary_csv(summary));
      write_atomic(dir / "summary.json", to_text(summary) + "\n");
    } catch (const UsageError& e) {  // The folder could be written when the run began.
      throw std::runtime_error(e.what());
    }
    if (options.json) {
      out << to_text(summary) << std::endl;
    } else {
      out << '\n'
          << summary_table(summary) << '\n'
          << (dir / "summary.json").string() << std::endl;
    }
  }
  if (!runner.failed()) return 0;
  return runner.failed_by_usage_alone() ? 2 : 1;
}

}  // namespace

int run_command(const RunOptions& options, std::ostream& out, std::ostream& err) {
  Processes processes;
  RunConfig run;
  std::shared_ptr<const zero::Dataset> data;
  const bool ready = processes.prepare(err, [&] {
    run = load_run_config(options.config, processes.with_cluster(options.overrides));
    processes.check(run);
    data = zero::load_dataset(run.data, run.validation_fraction);
    check_data(run, *data);
    if (!options.dry_run && !options.any_memory) check_memory(run, available_memory());
  });
  if (!ready) return 2;
  if (options.dry_run) {
    if (processes.root()) {
      const Json jobs = jobs_json(run);
      out << (options.json ? to_text(jobs) + "\n" : jobs_table(jobs)) << std::flush;
    }
    return 0;
  }
  std::optional<RunLock> lock;  // Of rank 0.
  const auto writable = [&] {
    const fs::path dir = options.out.empty() ? default_out(run.stem, run.hash) : options.out;
    check_writable(dir);
    lock.emplace(dir);
  };
  if (!processes.prepare(err, writable, true)) return 2;

  const StopOnSignal guard;
  if (!processes.several()) return run_jobs(options, run, *data, processes, out, err);
  try {
    return run_jobs(options, run, *data, processes, out, err);
  } catch (const std::exception& e) {  // One process' alone: the others wait for it.
    err << fmt::format("zeropp: rank {}: {}\n", processes.rank(), one_line(e.what()))
        << std::flush;
    processes.end_all(dynamic_cast<const UsageError*>(&e) != nullptr ? 2 : 1);
  }
}

}  // namespace zeropp::experiments
