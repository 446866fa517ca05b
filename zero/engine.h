#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hierarchy/collectives.h"
#include "quant/codec.h"
#include "quant/metrics.h"
#include "zero/checkpoint.h"
#include "zero/data.h"
#include "zero/memory_ledger.h"
#include "zero/model.h"
#include "zero/optimizer.h"
#include "zero/policy.h"

namespace zeropp::zero {

/// Which tensors of a role travel exact although the role has a codec.
struct ExactRule {
  bool one_d = true;                  ///< Norms and biases (fewer than two dimensions).
  std::size_t below = 0;              ///< Fewer elements than this.
  std::vector<std::string> patterns;  ///< Shell patterns (fnmatch) on the tensor's name.
  bool applies(const TensorSpec& tensor) const;
};

/// Deliberate faults, so that tests can show that `verify` notices. Never set otherwise.
enum class Sabotage : std::uint8_t {
  kNone,
  kStaleSecondary,    ///< Backward uses last step's secondary.
  kSkipRounding,      ///< The reduced gradient is not rounded to the wire dtype at the owner.
  kReverseOrder,      ///< Sources are summed in reverse rank order.
  kOwnUnrounded,      ///< The own contribution skips encode and decode.
  kDivergentReplica,  ///< One rank's gathered copy has one bit flipped.
  kLossyCheckpoint,   ///< load() leaves out residuals and reference weights.
};

struct EngineConfig {
  StagePolicy policy;
  quant::Dtype grad_accum = quant::Dtype::kF32;  ///< grad_accum_dtype.
  quant::Dtype wire = quant::Dtype::kF32;        ///< communication_data_type.
  hierarchy::Algorithm algorithm = hierarchy::Algorithm::kRing;
  quant::CodecPtr weight_codec;  ///< qwZ; null = exact.
  std::vector<quant::CodecPtr>
      grad_codecs;        ///< qgZ, one a level, innermost first; empty = exact.
  int powersgd_rank = 0;  ///< PowerSGD (powersgd.h) in place of grad_codecs; 0 = off.
  ExactRule exact_weights, exact_grads;
  std::uint64_t reduce_bucket = 500'000'000;  ///< Elements.
  std::uint64_t gather_bucket = 500'000'000;  ///< Elements a weight gather at the step.
  std::uint64_t prefetch = 50'000'000;        ///< Elements gathered ahead of use; 0 = off.
  double predivide = 0;                       ///< gradient_predivide_factor; 0 = N.
  double clip = 1.0;                          ///< 0 = off.
  int gas = 1;                                ///< Micro-steps a step.
  int micro_batch = 1;
  int seq = 64;
  std::uint64_t seed = 0;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  LossScaleConfig loss_scale;
  int max_consecutive_skips = 100;      ///< Then the run ends with an error.
  bool measure_gradient_error = false;  ///< Also reduce exactly (role control) and compare.
  bool check_replicas = false;          ///< Law 3, at every gather and every step.
  Sabotage sabotage = Sabotage::kNone;

  bool compresses_gradients() const { return !grad_codecs.empty() || powersgd_rank > 0; }
};

/// UsageError for every codec that nothing would use and every combination that cannot work.
/// The engine calls it; readers of a config may, before there are ranks.
void check_config(const EngineConfig& config, const hierarchy::Topology& topology,
                  std::span<const TensorSpec> tensors);

/// How a tensor travels; what the results list as routes.
struct Route {
  std::string tensor;
  std::string weights;                 ///< Codec spec, "exact", or "-" (never gathered).
  std::vector<std::string> gradients;  ///< One a level, or one "exact".
};

struct StepResult {
  double loss = 0;       ///< Mean over ranks and micro-steps, from the weights used.
  double grad_norm = 0;  ///< Of the mean gradient, before clipping.
  double lr = 0;
  double loss_scale = 1;
  bool skipped = false;         ///< Non-finite gradient: no update.
  std::uint64_t underflow = 0;  ///< Non-zero values that the wire cast sent as zero, this rank.
  quant::ErrorSums gradient_error;  ///< Compressed against exact mean, own chunks of this rank.
};

/// Worker-seconds of this rank since the last reset.
struct EngineTimes {
  double math = 0;   ///< Forward, backward, optimizer arithmetic.
  double codec = 0;  ///< Inside encode and decode.
};

/// One rank of sharded training. All ranks call the same members in the same order.
class Engine {
 public:
  /// Initial weights are keyed by (seed, tensor, element): no broadcast, equal on all ranks.
  /// UsageError: a codec where nothing would use it, ring with gradient codecs, ...
  Engine(hierarchy::Comm& comm, const Model& model, MemoryLedger& memory,
         const EngineConfig& config, const Dataset* data);
  ~Engine();

  StepResult train_step();
  /// Mean validation loss over `windows` held-out windows (shared out over ranks), with the
  /// masters rounded to the parameter dtype, exactly; `deployed`: with the decoded weights.
  double evaluate(std::uint64_t windows, bool deployed = false);
  /// True if decoded weights differ from rounded masters (a weight codec is in use).
  bool has_deployed_weights() const;

  std::uint64_t applied_steps() const;
  std::uint64_t skipped_steps() const;
  std::vector<Route> routes() const;
  EngineTimes times() const;
  void reset_times();
  /// Model-state bytes of this rank by the formula.
  StateBytes formula() const;

  /// SHA-256 over tensors by canonical name: master, m, v as unpadded little-endian fp32, then
  /// the applied steps (u64). Valid on rank 0, empty elsewhere; collective (role control).
  std::string state_sha256();
  /// Logical fp32 state on rank 0 (empty elsewhere): per tensor master | m | v. Collective.
  std::vector<std::vector<float>> gather_state();
  /// Overwrites masters (all ranks pass the whole tensors, canonical order), rounds parameters,
  /// resets the optimizer (moments and their step count, not the schedule), forgets residuals
  /// of codecs and makes the secondary stale. For golden tests and weight edits. With `delta`
  /// the reference is lost too and each tensor's next gather is exact (unreferenced_gathers),
  /// unless the caller has one. UsageError: a reference without `delta`, or of other sizes.
  void load_masters(const std::vector<std::vector<float>>& tensors,
                    const WeightReference* reference = nullptr);
  /// The reference of `delta`, to be saved beside the masters: a run that loads both goes on
  /// bit for bit. Tensors on rank 0 alone, versions on all. Collective (role control).
  /// UsageError without `delta`.
  WeightReference gather_reference();
  /// Tensors that training gathered exactly because their reference was missing; the same on
  /// every rank.
  std::uint64_t unreferenced_gathers() const;
  /// Between two steps; collective (role control). Whole on rank 0; elsewhere only the counts.
  Checkpoint save();
  /// Goes on where a checkpoint was made: bit for bit at the same N, topology and codecs, at
  /// any stage of exact runs. All ranks pass the same one. Another N, topology or algorithm, or
  /// other codecs: masters, moments, counts, loss scale and reference weights are taken over;
  /// residuals and PowerSGD's errors as the mean over the old senders (quant/codec_state.h)
  /// where the codecs of their role are the same, else dropped. Returns a sentence for each
  /// thing that was not taken over as it was. UsageError: tensors of other sizes.
  std::vector<std::string> load(const Checkpoint& checkpoint);
  /// Residuals of this rank's stateful codecs, to save or restore between steps
  /// (quant/codec_state.h); null if no codec has state. Evaluation never touches them.
  quant::CodecState* codec_state();
  /// Mean gradients of the last step as reduced (before clip and unscale), whole tensors in
  /// fp32 on rank 0; kept only if keep_gradients(true). Collective.
  void keep_gradients(bool on);
  std::vector<std::vector<float>> gather_gradients();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeropp::zero
