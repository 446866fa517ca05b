#pragma once

#include <deque>
#include <span>
#include <vector>

#include "zero/engine/context.h"
#include "zero/engine/optimizer_state.h"
#include "zero/engine/routes.h"

namespace zeropp::zero {

/// One rank's parameters: the shard of the policy's modulus, hpZ's secondary, and the whole
/// tensors that are live while a unit computes.
///
/// A pass walks a fixed plan of fetches: every unit forward, and when training every unit
/// backward in reverse. A fetch gathers its tensors (unless params are whole already), the next
/// ones are started ahead while they fit into `prefetch` elements.
///
/// hpZ: a fetch whose tensor has a secondary of the current version gathers it inside the
/// group, without a codec; else over the world, through the codec, and cuts the secondary from
/// the decoded tensor. A fetch with both kinds of tensors makes two gathers (world first).
class WeightStore : public WeightSource {
 public:
  enum class Mode {
    kTrain,
    kExact,     ///< Evaluation: rounded masters, never through a codec or a secondary.
    kDeployed,  ///< Evaluation: what training would decode.
  };

  WeightStore(EngineContext& context, const RouteTable& routes, const OptimizerState& state);

  /// After the masters changed (context.version is the new version): rounds them to the
  /// parameter dtype and, where params are coarser than masters, gathers them bucket by bucket.
  void refresh();
  /// The masters changed without a new version (a weight edit).
  void invalidate_secondary();

  void begin_pass(Mode mode);
  /// The next fetch of the plan is live when this returns.
  void acquire();
  /// Frees what the fetch in hand does not leave live.
  void release();

  quant::ConstView weight(std::uint32_t tensor) override;
  quant::ConstView shard(std::uint32_t tensor) const { return params_[tensor].view(); }

 private:
  struct Fetch {
    std::vector<std::uint32_t> gather, release;
    std::uint64_t elements = 0;
    bool backward = false;  ///< What it is for, whenever it is started.
  };
  /// A fetch in flight. Members die in reverse order: gathers before the memory they write.
  struct Slot {
    std::size_t fetch = 0;
    std::vector<quant::Tensor> shards;   ///< Rounded masters of an exact pass.
    std::vector<quant::Tensor> buffers;  ///< Whole tensors, as Fetch::gather.
    std::vector<bool> cut;               ///< Cut the secondary from this one.
    hierarchy::PendingGather world, group;
  };

  static std::vector<Fetch> make_plan(const Model& model, bool training);
  bool gathers() const;
  void start(std::size_t fetch);
  void finish(Slot& slot);
  void prefetch();
  bool waits_for_secondary(const Fetch& fetch) const;
  bool secondary_is_current(std::uint32_t tensor, const Fetch& fetch) const;
  /// This rank's master in the parameter dtype, as something to send.
  quant::Tensor rounded_master(std::uint32_t tensor) const;
  quant::ConstView exact_shard(std::uint32_t tensor, Slot& slot) const;
  void gather_params();
  void check_gathered(const Fetch& fetch);
  /// Sabotage::kDivergentReplica: flips a bit on rank 1.
  void diverge_on_purpose(std::span<quant::Tensor> copies) const;

  EngineContext& context_;
  const RouteTable& routes_;
  const OptimizerState& state_;
  const std::vector<Fetch> train_plan_, eval_plan_;
  std::vector<quant::Tensor> params_, secondary_, live_;
  std::vector<std::int64_t> secondary_version_;
  Mode mode_ = Mode::kTrain;
  std::size_t next_ = 0;     ///< Fetch that acquire() will make live.
  std::size_t started_ = 0;  ///< First fetch that was not started.
  std::deque<Slot> in_flight_;

  const std::vector<Fetch>& plan() const {
    return mode_ == Mode::kTrain ? train_plan_ : eval_plan_;
  }
};

}  // namespace zeropp::zero
