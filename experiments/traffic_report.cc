#include "experiments/traffic_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "experiments/predict.h"

namespace zeropp::experiments {
namespace {

using hierarchy::Traffic;
using hierarchy::TrafficEntry;

/// The whole run's prediction: steps after a skipped one find their secondary valid, skipped
/// ones gather nothing at their end.
StepPrediction predict_run(const RunConfig& run, const VariantConfig& variant,
                           const zero::Model& model, const JobOutcome& outcome,
                           const std::function<bool(const zero::TensorSpec&)>& only = {}) {
  std::map<std::pair<bool, bool>, StepPrediction> kinds;
  StepPrediction total;
  bool valid = starts_with_secondary(variant.engine);
  for (const StepRecord& step : outcome.steps) {
    const bool applied = !step.result.skipped;
    auto [it, fresh] = kinds.try_emplace({valid, applied});
    if (fresh) {
      it->second = predict_step(run.topology, model, variant.engine,
                                {.secondary_valid = valid, .applied = applied}, only);
    }
    total += it->second;
    valid = !applied;
  }
  return total;
}

/// Bytes that the busiest node sends: a node is the ranks joined by level 0.
std::uint64_t busiest_node(const RunConfig& run, const JobOutcome& outcome, int link) {
  const auto node_size = static_cast<std::size_t>(run.topology.group_size(0));
  std::vector<std::uint64_t> nodes(outcome.ledgers.size() / node_size);
  for (std::size_t rank = 0; rank < outcome.ledgers.size(); ++rank) {
    for (const TrafficEntry& e : outcome.ledgers[rank].entries()) {
      if (e.key.link == link && is_training(e.key.call)) {
        nodes[rank / node_size] += e.sent.bytes.total();
      }
    }
  }
  return *std::max_element(nodes.begin(), nodes.end());
}

/// All ranks' traffic on one link class by what it belongs to.
std::map<hierarchy::CallInfo, Traffic> by_call(const JobOutcome& outcome, int link) {
  std::map<hierarchy::CallInfo, Traffic> sums;
  for (const auto& ledger : outcome.ledgers) {
    for (const TrafficEntry& e : ledger.entries()) {
      if (e.key.link == link && is_training(e.key.call) && e.sent.messages > 0) {
        sums[e.key.call] += e.sent;
      }
    }
  }
  return sums;
}

Json rows(const std::map<hierarchy::CallInfo, Traffic>& calls, std::uint64_t steps) {
  Json list = Json::array();
  for (const auto& [call, traffic] : calls) {
    list.push_back({{"phase", hierarchy::name(call.phase)},
                    {"role", quant::name(call.role)},
                    {"collective", hierarchy::name(call.collective)},
                    {"algorithm", hierarchy::name(call.algorithm)},
                    {"hop", call.hop},
                    {"messages", per_step(traffic.messages, steps)},
                    {"payload", per_step(traffic.bytes.payload, steps)},
                    {"scale", per_step(traffic.bytes.scale, steps)},
                    {"padding", per_step(traffic.bytes.padding, steps)},
                    {"exact", per_step(traffic.bytes.exact, steps)}});
  }
  return list;
}

}  // namespace

bool is_training(const hierarchy::CallInfo& call) {
  using hierarchy::Phase;
  return call.role != quant::Role::kControl &&
         (call.phase == Phase::kForward || call.phase == Phase::kBackward ||
          call.phase == Phase::kStep);
}

Json per_step(std::uint64_t total, std::uint64_t steps) {
  if (steps == 0) return nullptr;
  if (total % steps == 0) return total / steps;
  return static_cast<double>(total) / static_cast<double>(steps);
}

Json traffic_per_step(const RunConfig& run, const VariantConfig& variant,
                      const zero::Model& model, const JobOutcome& outcome) {
  const std::uint64_t steps = outcome.steps.size();
  const StepPrediction predicted = predict_run(run, variant, model, outcome);
  Json out = Json::object();
  for (int link = 0; link < run.topology.levels(); ++link) {
    const auto calls = by_call(outcome, link);
    Traffic sum, expected;
    for (const auto& [call, traffic] : calls) sum += traffic;
    for (const auto& rank : predicted.sent) expected += rank[static_cast<std::size_t>(link)];
    out[run.topology.level(link).name] = {
        {"bytes_sum", per_step(sum.bytes.total(), steps)},
        {"messages", per_step(sum.messages, steps)},
        {"bytes_out_max_node", per_step(busiest_node(run, outcome, link), steps)},
        {"predicted_bytes_sum", per_step(expected.bytes.total(), steps)},
        {"predicted_messages", per_step(expected.messages, steps)},
        {"by", rows(calls, steps)}};
  }
  return out;
}

Json sent_per_rank(const RunConfig& run, const zero::Model& model, const JobOutcome& outcome) {
  const auto ranks = static_cast<std::uint64_t>(run.topology.ranks());
  std::uint64_t weights = 0, gradients = 0, elems = 0;
  for (int link = 0; link < run.topology.levels(); ++link) {
    for (const auto& [call, traffic] : by_call(outcome, link)) {
      if (call.role == quant::Role::kWeight) weights += traffic.bytes.total();
      if (call.role == quant::Role::kGradient) gradients += traffic.bytes.total();
    }
  }
  for (const zero::TensorSpec& t : model.tensors()) elems += t.numel;
  const std::uint64_t share = ranks * outcome.steps.size();
  Json psi = nullptr;
  if (ranks > 1) {
    const auto unit = static_cast<double>(elems * size_of(model.dtype()) * (ranks - 1)) /
                      static_cast<double>(ranks);
    psi = static_cast<double>(weights + gradients) / static_cast<double>(share) / unit;
  }
  return {{"weights", per_step(weights, share)},
          {"gradients", per_step(gradients, share)},
          {"psi", psi}};
}

Json volume(const RunConfig& run, const VariantConfig& variant, const zero::Model& model,
            const JobOutcome& outcome) {
  const int link = run.topology.levels() - 1;
  const int nodes = run.topology.level(link).fan_out;
  if (link == 0 || nodes == 1) return nullptr;
  const auto always_exact = [&](const zero::TensorSpec& t) {
    return variant.engine.exact_weights.applies(t) && variant.engine.exact_grads.applies(t);
  };
  std::size_t coded_elems = 0, elems = 0;
  for (const zero::TensorSpec& t : model.tensors()) {
    elems += t.numel;
    coded_elems += always_exact(t) ? 0 : t.numel;
  }
  Traffic exact_tensors, sum, scalars;
  for (const auto& rank : predict_run(run, variant, model, outcome, always_exact).sent) {
    exact_tensors += rank[static_cast<std::size_t>(link)];
  }
  for (const auto& [call, traffic] : by_call(outcome, link)) {
    (call.role == quant::Role::kScalar ? scalars : sum) += traffic;
  }
  const double members = static_cast<double>(nodes) * static_cast<double>(outcome.steps.size());
  const double unit = (nodes - 1.0) / nodes * static_cast<double>(size_of(model.dtype()));
  const auto units = [&](std::uint64_t bytes, std::size_t parameters) {
    return static_cast<double>(bytes) / members / (unit * static_cast<double>(parameters));
  };
  // What coded tensors sent, exact where a role has no codec.
  const std::uint64_t coded = sum.bytes.payload + sum.bytes.exact - exact_tensors.bytes.exact;
  Json share = nullptr;
  if (coded_elems > 0) share = units(coded, coded_elems);
  return {{"link", run.topology.level(link).name},
          {"unit_bytes", unit * static_cast<double>(elems)},
          {"parameters", elems},
          {"coded_parameters", coded_elems},
          {"coded_over_own_share", share},
          {"coded", units(coded, elems)},
          {"exact_tensors", units(exact_tensors.bytes.exact, elems)},
          {"scales", units(sum.bytes.scale, elems)},
          {"padding", units(sum.bytes.padding, elems)},
          {"scalars", units(scalars.bytes.total(), elems)},
          {"total", units(sum.bytes.total() + scalars.bytes.total(), elems)}};
}

}  // namespace zeropp::experiments
