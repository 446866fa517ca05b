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
///
/// Copies: what ranks hold for longer than a pass, whole parameters (stages 1 and 2) or the
/// secondary. With `delta` they are the reference: copy = round(copy + decode(master - copy)),
/// once a version. A stale secondary is then renewed across its groups before it is gathered
/// inside them; it begins as a slice of the keyed initial weights.
class WeightStore : public WeightSource {
 public:
  enum class Mode {
    kTrain,
    kExact,     ///< Evaluation: rounded masters, never through a codec or a secondary.
    kDeployed,  ///< Evaluation: what training would decode.
  };

  WeightStore(EngineContext& context, const RouteTable& routes, const OptimizerState& state);

  /// Once, after the masters have their initial values.
  void initialise();
  /// After the masters changed (context.version is the new version): rounds them to the
  /// parameter dtype and, where params are coarser than masters, gathers those bucket by bucket
  /// whose copy is of another version.
  void refresh();
  /// The masters changed without a new version (a weight edit): no copy is of use.
  void invalidate_copies();

  /// See Engine::load_masters, gather_reference and unreferenced_gathers.
  void set_reference(const WeightReference& reference);
  const std::vector<std::int64_t>& copy_versions() const { return copy_version_; }
  /// The copy's elements of this rank's own chunk, in fp32.
  std::vector<float> copy_chunk(std::uint32_t tensor) const;
  std::uint64_t unreferenced_gathers() const { return unreferenced_; }
  /// A secondary that the next pass will use: the last step was skipped.
  bool has_current_secondary() const;

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
  /// Where a fetch takes a tensor from.
  enum class Source : std::uint8_t {
    kWorld,
    kGroup,  ///< A current secondary.
    kRenew,  ///< `delta` at stage 3: across groups into the secondary, then inside the group.
  };
  /// A fetch in flight. Members die in reverse order: gathers before the memory they write.
  struct Slot {
    std::size_t fetch = 0;
    std::vector<quant::Tensor> shards;   ///< Rounded masters of an exact pass, differences.
    std::vector<quant::Tensor> copies;   ///< Stand-ins for secondaries that are not renewed.
    std::vector<quant::Tensor> buffers;  ///< Whole tensors, as Fetch::gather.
    std::vector<Source> sources;         ///< As Fetch::gather.
    std::vector<hierarchy::GatherTensor> inside;  ///< What follows the renewal.
    hierarchy::PendingGather world, group, renewal;
  };

  static std::vector<Fetch> make_plan(const Model& model, bool training);
  bool gathers() const;
  void start(std::size_t fetch);
  void finish(Slot& slot);
  void prefetch();
  bool waits_for_secondary(const Fetch& fetch) const;
  Source source(std::uint32_t tensor, const Fetch& fetch) const;
  bool secondary_is_current(std::uint32_t tensor, const Fetch& fetch) const;
  /// What this fetch gathers over the world or across groups becomes the secondary.
  bool keeps_secondary(std::uint32_t tensor) const;
  /// Traffic belongs to the pass that needs it, not to the one it was started in.
  hierarchy::CallOptions call(const Fetch& fetch, int coarse, int fine) const;
  quant::ConstView exact_shard(std::uint32_t tensor, Slot& slot) const;
  /// Across groups into the secondary or its stand-in; adds what follows to slot.inside.
  hierarchy::GatherTensor renewal(std::uint32_t tensor, quant::MutView out, Slot& slot);

  std::vector<quant::Tensor>& copies() { return secondary_.empty() ? params_ : secondary_; }
  const std::vector<quant::Tensor>& copies() const {
    return secondary_.empty() ? params_ : secondary_;
  }
  int copy_modulus() const;
  bool renews_secondary() const { return !secondary_.empty() && routes_.codes_differences(); }
  /// What this rank sends of a tensor to renew copies, and through which codec: a difference
  /// where a copy is the reference; the rounded master else, exactly if a reference is missing.
  struct Update {
    quant::Tensor shard;
    const quant::Codec* codec = nullptr;
  };
  Update update_of(std::uint32_t tensor) const;
  bool lacks_reference(std::uint32_t tensor) const;
  /// This rank's master in the parameter dtype, as something to send.
  quant::Tensor rounded_master(std::uint32_t tensor) const;
  /// master - copy in fp32, of this rank's master shard.
  quant::Tensor difference(std::uint32_t tensor) const;
  void round_params();
  void gather_params();
  void check_params();
  void check_gathered(const Fetch& fetch);
  /// Sabotage::kDivergentReplica: flips a bit on rank 1.
  void diverge_on_purpose(std::span<quant::Tensor> copies) const;

  EngineContext& context_;
  const RouteTable& routes_;
  const OptimizerState& state_;
  const std::vector<Fetch> train_plan_, eval_plan_;
  std::vector<quant::Tensor> params_, secondary_, live_;
  std::vector<std::int64_t> copy_version_;  ///< Of the weights in copies(); -1: none.
  std::uint64_t unreferenced_ = 0;
  Mode mode_ = Mode::kTrain;
  std::size_t next_ = 0;     ///< Fetch that acquire() will make live.
  std::size_t started_ = 0;  ///< First fetch that was not started.
  std::deque<Slot> in_flight_;

  const std::vector<Fetch>& plan() const {
    return mode_ == Mode::kTrain ? train_plan_ : eval_plan_;
  }
};

}  // namespace zeropp::zero
