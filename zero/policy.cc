#include "zero/policy.h"

#include <fmt/format.h>

#include "hierarchy/chunks.h"
#include "quant/error.h"

namespace zeropp::zero {
namespace {

[[noreturn]] void refuse(std::string_view area, const std::string& expected,
                         const std::string& found) {
  throw UsageError(area, expected, found);
}

/// Group sizes in the unit of ranks; 0 is off.
void check_group(std::string_view key, int group, int ranks) {
  if (group < 0) refuse(key, "a group size in ranks, or 0 for off", std::to_string(group));
  if (group > 0 && ranks % group != 0) {
    refuse(key, fmt::format("a divisor of the {} ranks", ranks), std::to_string(group));
  }
}

void check_scheme(const SchemeRequest& r, int ranks, std::string_view key, int group) {
  check_group(key, group, ranks);
  if (r.stage != 3) {
    refuse(key, "stage 3: the parameters are sharded inside a group",
           fmt::format("stage {}", r.stage));
  }
  if (group == 1 && ranks > 1) {
    refuse(key, "at least 2 ranks a group (a group of 1 shards nothing: use stage 0)", "1");
  }
  if (r.secondary > 1) {
    refuse(
        "secondary",
        fmt::format(
            "no secondary with {}: its parameters are gathered inside the group already", key),
        std::to_string(r.secondary));
  }
}

void check_request(const SchemeRequest& r, int ranks) {
  if (ranks < 1) refuse("ranks", "at least 1 rank", std::to_string(ranks));
  if (r.stage < 0 || r.stage > 3) refuse("stage", "0, 1, 2 or 3", std::to_string(r.stage));
  if (r.stage1_all_reduce && r.stage != 1) {
    refuse("stage1_all_reduce", "stage 1: no other stage has the choice",
           fmt::format("stage {}", r.stage));
  }
  if (r.mics_group != 0 && r.hsdp_group != 0) {
    refuse("mics_group", "one scheme, either MiCS or HSDP",
           fmt::format("MiCS groups of {} and HSDP groups of {}", r.mics_group, r.hsdp_group));
  }
  if (r.mics_group != 0) check_scheme(r, ranks, "mics_group", r.mics_group);
  if (r.hsdp_group != 0) check_scheme(r, ranks, "hsdp_group", r.hsdp_group);
  check_group("secondary", r.secondary, ranks);
  if (r.secondary > 1 && r.stage != 3) {
    refuse("secondary", "stage 3: only there are the parameters sharded over the world",
           fmt::format("groups of {} at stage {}", r.secondary, r.stage));
  }
}

StagePolicy shards(const SchemeRequest& r, int ranks) {
  StagePolicy p;
  p.stage = r.stage;
  if (r.mics_group != 0 || r.hsdp_group != 0) {
    p.scheme = r.mics_group != 0 ? "mics" : "hsdp";
    p.params = p.grads = p.optimizer = r.mics_group != 0 ? r.mics_group : r.hsdp_group;
    p.reduce_at = r.mics_group != 0 ? ReduceAt::kTwoHop : ReduceAt::kMicroStep;
    return p;
  }
  if (r.stage >= 1) p.optimizer = ranks;
  if (r.stage >= 2) p.grads = ranks;
  if (r.stage >= 3) p.params = ranks;
  if (r.secondary > 1) p.secondary = r.secondary;
  p.all_reduce = r.stage == 0 || r.stage1_all_reduce;
  p.reduce_at = r.stage >= 2 ? ReduceAt::kMicroStep : ReduceAt::kBoundary;
  return p;
}

ReduceAt reduce_at(const SchemeRequest& r, const StagePolicy& p) {
  const bool whole_grads = r.stage < 2;
  if (r.reduce_at.empty()) return p.reduce_at;
  if (r.reduce_at == "micro_step") return ReduceAt::kMicroStep;
  if (r.reduce_at == "boundary") {
    if (whole_grads) return ReduceAt::kBoundary;
    refuse(
        "reduce_at",
        fmt::format("'micro_step'{}: with sharded gradients no rank keeps whole ones until the "
                    "boundary (stages 0 and 1 do)",
                    p.scheme == "mics" ? " or 'two_hop'" : ""),
        "'boundary'");
  }
  if (r.reduce_at == "two_hop") {
    if (p.scheme == "mics") return ReduceAt::kTwoHop;
    refuse(
        "reduce_at",
        fmt::format("'micro_step'{}: only MiCS keeps gradients sharded inside a group between "
                    "the two hops",
                    whole_grads ? " or 'boundary'" : ""),
        "'two_hop'");
  }
  refuse("reduce_at", "'boundary', 'micro_step' or 'two_hop'", "'" + r.reduce_at + "'");
}

}  // namespace

StagePolicy make_policy(const SchemeRequest& request, int ranks) {
  check_request(request, ranks);
  StagePolicy policy = shards(request, ranks);
  policy.reduce_at = reduce_at(request, policy);
  return policy;
}

StateBytes& StateBytes::operator+=(const StateBytes& o) {
  params += o.params;
  grads += o.grads;
  master += o.master;
  momentum += o.momentum;
  variance += o.variance;
  secondary += o.secondary;
  return *this;
}

StateBytes state_bytes(const StagePolicy& policy, const StateLayout& layout,
                       std::uint64_t numel, int ranks, int rank) {
  const hierarchy::ChunkMap map{numel, ranks};
  const auto elems = [&](int modulus) -> std::uint64_t {
    return hierarchy::shard_elems(map, modulus, rank);
  };
  const std::uint64_t optimizer = elems(policy.optimizer) * size_of(quant::Dtype::kF32);
  std::uint64_t grad = size_of(layout.grad);
  if (layout.accum != layout.grad) grad += size_of(layout.accum);
  StateBytes bytes;
  bytes.params = elems(policy.params) * size_of(layout.param);
  bytes.grads = elems(policy.grads) * grad;
  bytes.master = optimizer;
  if (layout.adam || layout.momentum) bytes.momentum = optimizer;
  if (layout.adam) bytes.variance = optimizer;
  if (policy.secondary > 0) bytes.secondary = elems(policy.secondary) * size_of(layout.param);
  return bytes;
}

}  // namespace zeropp::zero
