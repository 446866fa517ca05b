#include "experiments/predict.h"

#include <algorithm>

#include "zero/powersgd.h"

namespace zeropp::experiments {
namespace {

using hierarchy::CallOptions;
using hierarchy::CostTensor;
using Tensors = std::vector<std::uint32_t>;

class Predictor {
 public:
  Predictor(const hierarchy::Topology& topology, const zero::Model& model,
            const zero::EngineConfig& config,
            const std::function<bool(const zero::TensorSpec&)>& only)
      : topology_(topology),
        model_(model),
        config_(config),
        policy_(config.policy),
        only_(only) {
    for (const auto& codec : config.grad_codecs) levels_.push_back(codec.get());
    const auto ranks = static_cast<std::size_t>(topology.ranks());
    result_.sent.assign(
        ranks, std::vector<hierarchy::Traffic>(static_cast<std::size_t>(topology.levels())));
  }

  StepPrediction run(StepKind kind) {
    current_.assign(model_.tensors().size(), kind.secondary_valid && policy_.secondary > 0);
    for (int micro = 0; micro < config_.gas; ++micro) {
      if (policy_.gathers_units()) micro_step_gathers();
      if (policy_.reduce_at != zero::ReduceAt::kBoundary) reduce_all(/*outer=*/false);
    }
    if (policy_.reduce_at == zero::ReduceAt::kBoundary) reduce_all(/*outer=*/false);
    if (policy_.reduce_at == zero::ReduceAt::kTwoHop) reduce_all(/*outer=*/true);
    if (!only_) {
      add([&](int rank) { return gather_scalars_cost(topology_, rank, 2); });
    }
    if (kind.applied && policy_.gathers_at_step()) step_gathers();
    return result_;
  }

 private:
  template <class F>
  void add(const F& cost_of_rank) {
    ++result_.collectives;
    for (int rank = 0; rank < topology_.ranks(); ++rank) {
      for (const auto& [link, traffic] : cost_of_rank(rank).by_link) {
        result_.sent[static_cast<std::size_t>(rank)][static_cast<std::size_t>(link)] += traffic;
      }
    }
  }

  std::size_t numel(std::uint32_t t) const { return model_.tensors()[t].numel; }
  bool counted(std::uint32_t t) const { return !only_ || only_(model_.tensors()[t]); }
  const quant::Codec* weight_codec(std::uint32_t t) const {
    return config_.exact_weights.applies(model_.tensors()[t]) ? nullptr
                                                              : config_.weight_codec.get();
  }

  /// Whole tensors in order; one that would overfill an open bucket closes it first.
  std::vector<Tensors> buckets(const Tensors& order, std::uint64_t limit) const {
    std::vector<Tensors> all;
    std::uint64_t held = 0;
    bool open = false;
    for (const std::uint32_t t : order) {
      if (open && held + numel(t) > limit) open = false;
      if (!open) {
        all.emplace_back();
        held = 0;
        open = true;
      }
      all.back().push_back(t);
      held += numel(t);
      if (held >= limit) open = false;
    }
    return all;
  }

  void gather(const Tensors& tensors, int coarse, int fine, bool coded) {
    std::vector<CostTensor> costs;
    for (const std::uint32_t t : tensors) {
      if (!counted(t)) continue;
      costs.push_back({.numel = numel(t),
                       .dtype = model_.dtype(),
                       .gather_codec = coded ? weight_codec(t) : nullptr,
                       .codecs = {}});
    }
    if (costs.empty()) return;
    const CallOptions options{.algorithm = config_.algorithm, .coarse = coarse, .fine = fine};
    add([&](int rank) { return all_gather_cost(topology_, rank, options, costs); });
  }

  bool differences() const {
    return config_.weight_codec && config_.weight_codec->traits().difference;
  }

  /// A unit's weights: inside the group where a current secondary exists, else over the world;
  /// with differences across the groups into the secondary, then inside.
  void gather_unit(const Tensors& tensors) {
    Tensors world, group;
    for (const std::uint32_t t : tensors) (current_[t] ? group : world).push_back(t);
    if (differences()) {
      gather(world, policy_.secondary, policy_.params, /*coded=*/true);
      gather(world, 1, policy_.secondary, /*coded=*/false);
    } else {
      gather(world, 1, policy_.params, /*coded=*/true);
    }
    gather(group, 1, policy_.secondary, /*coded=*/false);
    if (policy_.secondary > 0) {
      for (const std::uint32_t t : world) current_[t] = true;
    }
  }

  /// Every unit forward, then backward. A tensor of the first and of the last unit (tied) stays
  /// live from the last one's forward to its backward, and the first one's backward needs none.
  void micro_step_gathers() {
    const int last = model_.units() - 1;
    for (int u = 0; u <= last; ++u) gather_unit(model_.unit_tensors(u));
    for (int u = last; u >= 0; --u) {
      Tensors tensors;
      for (const std::uint32_t t : model_.unit_tensors(u)) {
        const bool tied = last > 0 && in_unit(t, 0) && in_unit(t, last);
        if (!tied) tensors.push_back(t);
      }
      gather_unit(tensors);
    }
  }
  bool in_unit(std::uint32_t t, int unit) const {
    const auto& tensors = model_.unit_tensors(unit);
    return std::find(tensors.begin(), tensors.end(), t) != tensors.end();
  }

  /// Weights after the update, in canonical order.
  void step_gathers() {
    Tensors order(model_.tensors().size());
    for (std::uint32_t t = 0; t < order.size(); ++t) order[t] = t;
    for (const Tensors& bucket : buckets(order, config_.gather_bucket)) {
      gather(bucket, policy_.params, policy_.optimizer, /*coded=*/true);
    }
  }

  void reduce_all(bool outer) {
    Tensors order;
    for (int u = model_.units() - 1; u >= 0; --u) {
      for (const std::uint32_t t : model_.unit_grads(u)) order.push_back(t);
    }
    for (const Tensors& bucket : buckets(order, config_.reduce_bucket)) reduce(bucket, outer);
  }

  void reduce(const Tensors& bucket, bool outer) {
    std::vector<CostTensor> costs;
    reduce_low_rank(bucket);
    for (const std::uint32_t t : bucket) {
      if (!counted(t) || zero::travels_low_rank(config_, model_.tensors()[t])) continue;
      CostTensor cost{.numel = numel(t), .codecs = {}};
      if (!config_.exact_grads.applies(model_.tensors()[t])) cost.codecs = levels_;
      costs.push_back(cost);
    }
    if (costs.empty()) return;
    const int n = topology_.ranks();
    const int result = policy_.all_reduce ? 1 : policy_.optimizer;
    const bool two_hop = policy_.reduce_at == zero::ReduceAt::kTwoHop;
    if (policy_.all_reduce || result == 1) {
      all_reduce(costs, 1, config_.algorithm);
    } else if (outer) {
      all_reduce(costs, policy_.grads, hierarchy::Algorithm::kHierarchical);
    } else {
      const CallOptions options = call(1, result, config_.algorithm);
      add([&](int rank) {
        return reduce_scatter_cost(topology_, rank, options, {.wire = config_.wire}, costs);
      });
      if (result != n && !two_hop) {  // HSDP and the like: then across the groups.
        all_reduce(costs, result, hierarchy::Algorithm::kHierarchical);
      }
    }
  }
  /// PowerSGD: an all-reduce of the left factors, one of the right ones.
  void reduce_low_rank(const Tensors& bucket) {
    std::vector<CostTensor> left, right;
    const auto rank = static_cast<std::size_t>(config_.powersgd_rank);
    for (const std::uint32_t t : bucket) {
      const zero::TensorSpec& tensor = model_.tensors()[t];
      if (!counted(t) || !zero::travels_low_rank(config_, tensor)) continue;
      const auto [rows, cols] = zero::matrix_shape(tensor);
      left.push_back({.numel = rank * rows, .codecs = {}});
      right.push_back({.numel = rank * cols, .codecs = {}});
    }
    if (left.empty()) return;
    all_reduce(left, 1, config_.algorithm);
    all_reduce(right, 1, config_.algorithm);
  }
  static CallOptions call(int coarse, int fine, hierarchy::Algorithm algorithm) {
    return {
        .algorithm = algorithm, .role = quant::Role::kGradient, .coarse = coarse, .fine = fine};
  }
  void all_reduce(const std::vector<CostTensor>& costs, int coarse,
                  hierarchy::Algorithm algorithm) {
    const CallOptions options = call(coarse, topology_.ranks(), algorithm);
    add([&](int rank) {
      return all_reduce_cost(topology_, rank, options, {.wire = config_.wire}, costs);
    });
  }

  const hierarchy::Topology& topology_;
  const zero::Model& model_;
  const zero::EngineConfig& config_;
  const zero::StagePolicy& policy_;
  const std::function<bool(const zero::TensorSpec&)>& only_;
  std::vector<const quant::Codec*> levels_;
  std::vector<bool> current_;  ///< Tensors whose secondary has this step's version.
  StepPrediction result_;
};

}  // namespace

StepPrediction& StepPrediction::operator+=(const StepPrediction& o) {
  if (sent.empty())
    sent.assign(o.sent.size(), std::vector<hierarchy::Traffic>(o.sent[0].size()));
  for (std::size_t r = 0; r < sent.size(); ++r) {
    for (std::size_t l = 0; l < sent[r].size(); ++l) sent[r][l] += o.sent[r][l];
  }
  collectives += o.collectives;
  return *this;
}

bool starts_with_secondary(const zero::EngineConfig& config) {
  return config.policy.secondary > 0 && config.weight_codec &&
         config.weight_codec->traits().difference;
}

StepPrediction predict_step(const hierarchy::Topology& topology, const zero::Model& model,
                            const zero::EngineConfig& config, StepKind kind,
                            const std::function<bool(const zero::TensorSpec&)>& only) {
  return Predictor(topology, model, config, only).run(kind);
}

}  // namespace zeropp::experiments
