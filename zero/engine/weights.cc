#include "zero/engine/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "quant/convert.h"
#include "zero/engine/replicas.h"

namespace zeropp::zero {

using quant::MemoryKind;
using quant::Tensor;

WeightStore::WeightStore(EngineContext& context, const RouteTable& routes,
                         const OptimizerState& state)
    : context_(context),
      routes_(routes),
      state_(state),
      train_plan_(make_plan(context.model, true)),
      eval_plan_(make_plan(context.model, false)),
      live_(context.tensors().size()),
      copy_version_(context.tensors().size(), -1) {
  const StagePolicy& policy = context.config.policy;
  for (std::uint32_t t = 0; t < context.tensors().size(); ++t) {
    params_.emplace_back(&context.memory, MemoryKind::kParams, context.model.dtype(),
                         context.shard_size(t, policy.params));
    if (policy.secondary != 0) {
      secondary_.emplace_back(&context.memory, MemoryKind::kSecondary, context.model.dtype(),
                              context.shard_size(t, policy.secondary));
    }
  }
}

std::vector<WeightStore::Fetch> WeightStore::make_plan(const Model& model, bool training) {
  const int units = model.units();
  const auto& first = model.unit_tensors(0);
  const auto tied = [&](std::uint32_t t) {  // In the first and in the last unit.
    const auto& last = model.unit_tensors(units - 1);
    return units > 1 && std::find(first.begin(), first.end(), t) != first.end() &&
           std::find(last.begin(), last.end(), t) != last.end();
  };
  std::vector<Fetch> plan;
  const auto add = [&](int unit, bool backward) {
    Fetch fetch;
    fetch.backward = backward;
    for (const std::uint32_t t : model.unit_tensors(unit)) {
      const bool stays = tied(t) && training && unit == units - 1;  // Until its backward ends.
      const bool absent = tied(t) && backward && unit == 0;
      if (absent) continue;
      if (!(backward && stays)) {
        fetch.gather.push_back(t);
        fetch.elements += model.tensors()[t].numel;
      }
      if (backward || !stays) fetch.release.push_back(t);
    }
    plan.push_back(std::move(fetch));
  };
  for (int u = 0; u < units; ++u) add(u, false);
  for (int u = units - 1; training && u >= 0; --u) add(u, true);
  return plan;
}

void WeightStore::diverge_on_purpose(std::span<Tensor> copies) const {
  if (context_.config.sabotage != Sabotage::kDivergentReplica || context_.rank() != 1) return;
  for (Tensor& copy : copies) {
    if (copy.size() == 0) continue;
    copy.view().as_bytes().front() ^= std::byte{1};
    return;
  }
}

bool WeightStore::gathers() const {
  const bool whole = context_.config.policy.params == 1;
  return mode_ == Mode::kExact ? !whole || routes_.codes_weights() : !whole;
}

void WeightStore::begin_pass(Mode mode) {
  mode_ = mode;
  next_ = started_ = 0;
  in_flight_.clear();
}

bool WeightStore::secondary_is_current(std::uint32_t t, const Fetch& fetch) const {
  if (secondary_.empty() || mode_ == Mode::kExact) return false;
  // Differences are to the secondary: deployed weights are what it holds. Without them the
  // codec alone says what is deployed.
  if (mode_ == Mode::kDeployed && !renews_secondary()) return false;
  if (context_.config.sabotage == Sabotage::kStaleSecondary && copy_version_[t] >= 0 &&
      fetch.backward) {
    return true;
  }
  return copy_version_[t] == static_cast<std::int64_t>(context_.version);
}

bool WeightStore::keeps_secondary(std::uint32_t t) const {
  const bool stale_on_purpose =
      context_.config.sabotage == Sabotage::kStaleSecondary && copy_version_[t] >= 0;
  return !secondary_.empty() && mode_ == Mode::kTrain && !stale_on_purpose;
}

WeightStore::Source WeightStore::source(std::uint32_t t, const Fetch& fetch) const {
  if (secondary_is_current(t, fetch)) return Source::kGroup;
  return renews_secondary() && mode_ != Mode::kExact ? Source::kRenew : Source::kWorld;
}

bool WeightStore::waits_for_secondary(const Fetch& fetch) const {
  if (secondary_.empty() || mode_ != Mode::kTrain) return false;
  for (const Slot& slot : in_flight_) {
    for (const std::uint32_t t : plan()[slot.fetch].gather) {
      if (std::find(fetch.gather.begin(), fetch.gather.end(), t) != fetch.gather.end()) {
        return true;
      }
    }
  }
  return false;
}

quant::ConstView WeightStore::exact_shard(std::uint32_t t, Slot& slot) const {
  if (context_.config.policy.params > 1) return params_[t].view();  // Rounded masters already.
  return slot.shards.emplace_back(rounded_master(t)).view();
}

hierarchy::CallOptions WeightStore::call(const Fetch& fetch, int coarse, int fine) const {
  auto options = context_.weight_call(coarse, fine);
  if (mode_ == Mode::kTrain && fetch.backward) options.phase = hierarchy::Phase::kBackward;
  return options;
}

hierarchy::GatherTensor WeightStore::renewal(std::uint32_t t, quant::MutView out, Slot& slot) {
  Tensor& secondary = secondary_[t];
  if (!keeps_secondary(t)) {
    Tensor& copy = slot.copies.emplace_back(&context_.memory, MemoryKind::kComm,
                                            secondary.dtype(), secondary.size());
    quant::convert(secondary.view(), copy.view());
  }
  const quant::MutView target =
      keeps_secondary(t) ? secondary.view() : slot.copies.back().view();
  const std::size_t numel = context_.tensor(t).numel;
  slot.inside.push_back(
      {.tensor = t, .numel = numel, .shard = target, .out = out, .codec = nullptr});
  if (mode_ == Mode::kTrain && lacks_reference(t)) ++unreferenced_;
  Update update = update_of(t);
  slot.shards.push_back(std::move(update.shard));
  return {.tensor = t,
          .numel = numel,
          .shard = slot.shards.back().view(),
          .out = target,
          .codec = update.codec};
}

void WeightStore::start(std::size_t index) {
  const Fetch& fetch = plan()[index];
  const StagePolicy& policy = context_.config.policy;
  Slot& slot = in_flight_.emplace_back();
  slot.fetch = index;
  std::vector<hierarchy::GatherTensor> world, group, renewals;
  for (const std::uint32_t t : fetch.gather) {
    Tensor& out = slot.buffers.emplace_back(&context_.memory, MemoryKind::kGathered,
                                            context_.model.dtype(), context_.tensor(t).numel);
    hierarchy::GatherTensor gather{
        .tensor = t, .numel = out.size(), .shard = {}, .out = out.view(), .codec = nullptr};
    slot.sources.push_back(source(t, fetch));
    if (slot.sources.back() == Source::kRenew) {
      renewals.push_back(renewal(t, out.view(), slot));
    } else if (slot.sources.back() == Source::kGroup) {
      gather.shard = secondary_[t].view();
      group.push_back(gather);
    } else if (mode_ == Mode::kExact) {
      gather.shard = exact_shard(t, slot);
      world.push_back(gather);
    } else {
      gather.shard = params_[t].view();
      gather.codec = routes_.weights(t);
      world.push_back(gather);
    }
  }
  const int fine = policy.params > 1 ? policy.params : policy.optimizer;
  if (!world.empty()) {
    slot.world = start_all_gather(context_.comm, call(fetch, 1, fine), world);
  }
  if (!renewals.empty()) {
    slot.renewal =
        start_all_gather(context_.comm, call(fetch, policy.secondary, fine), renewals);
  }
  if (!group.empty()) {
    slot.group = start_all_gather(context_.comm, call(fetch, 1, policy.secondary), group);
  }
}

void WeightStore::finish(Slot& slot) {
  const Fetch& fetch = plan()[slot.fetch];
  slot.world.finish();
  slot.renewal.finish();
  slot.group.finish();
  const int group = context_.config.policy.secondary;
  if (!slot.inside.empty()) {
    all_gather(context_.comm, call(fetch, 1, group), slot.inside);
  }
  for (std::size_t i = 0; i < fetch.gather.size(); ++i) {
    const std::uint32_t t = fetch.gather[i];
    live_[t] = std::move(slot.buffers[i]);
    if (slot.sources[i] == Source::kGroup || !keeps_secondary(t)) continue;
    if (slot.sources[i] == Source::kWorld) {
      narrow_shard(context_, t, live_[t].view(), 1, secondary_[t].view(), group);
    }
    copy_version_[t] = static_cast<std::int64_t>(context_.version);
  }
  if (context_.config.check_replicas) check_gathered(fetch);
}

void WeightStore::check_gathered(const Fetch& fetch) {
  if (fetch.gather.empty()) return;
  for (const std::uint32_t t : fetch.gather) diverge_on_purpose({&live_[t], 1});
  std::vector<quant::ConstView> whole, cut;
  for (const std::uint32_t t : fetch.gather) {
    whole.push_back(live_[t].view());
    if (!secondary_.empty() && mode_ == Mode::kTrain) cut.push_back(secondary_[t].view());
  }
  check_replicas(context_, "gathered weights", 1, whole);
  if (!cut.empty()) {
    check_replicas(context_, "secondary shards", context_.config.policy.secondary, cut);
  }
}

void WeightStore::prefetch() {
  std::uint64_t ahead = 0;
  for (const Slot& slot : in_flight_) ahead += plan()[slot.fetch].elements;
  while (started_ < plan().size()) {
    const Fetch& fetch = plan()[started_];
    if (ahead + fetch.elements > context_.config.prefetch || waits_for_secondary(fetch)) return;
    ahead += fetch.elements;
    start(started_++);
  }
}

void WeightStore::acquire() {
  if (!gathers()) {
    ++next_;
    return;
  }
  if (started_ == next_) start(started_++);
  finish(in_flight_.front());
  in_flight_.pop_front();
  ++next_;
  prefetch();
}

void WeightStore::release() {
  for (const std::uint32_t t : plan()[next_ - 1].release) live_[t].reset();
}

quant::ConstView WeightStore::weight(std::uint32_t t) {
  if (live_[t]) return live_[t].view();
  if (gathers()) {
    throw std::logic_error(
        fmt::format("weight {} used while it is not gathered", context_.tensor(t).name));
  }
  return params_[t].view();
}

}  // namespace zeropp::zero
