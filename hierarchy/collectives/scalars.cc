#include <algorithm>

#include "hierarchy/collectives/gather.h"
#include "quant/error.h"

namespace zeropp::hierarchy {
namespace {

/// Raw bytes of doubles, as a gather without codec moves them.
quant::ConstView raw(std::span<const double> x) {
  return {x.data(), quant::Dtype::kF32, x.size_bytes() / size_of(quant::Dtype::kF32)};
}

std::vector<double> gather_one(Comm& comm, Phase phase, quant::Role role, double mine) {
  std::vector<double> all(static_cast<std::size_t>(comm.size()));
  gather_scalars(comm, phase, role, std::span(&mine, 1), all);
  return all;
}

}  // namespace

void gather_scalars(Comm& comm, Phase phase, quant::Role role, std::span<const double> mine,
                    std::span<double> all) {
  const CallOptions options{
      .algorithm = Algorithm::kHierarchical, .phase = phase, .role = role};
  detail::CallPlan plan = detail::plan_call(comm, options, Collective::kGatherScalars);
  detail::check_elems("all", 0, mine.size() * static_cast<std::size_t>(comm.size()),
                      all.size());
  comm.transport.ledger().collective(plan.call);
  detail::ContentHash hash(plan, quant::Dtype::kF32);
  hash.add(0, mine.size(), nullptr);
  plan.call.content = hash.content();
  const GatherTensor tensor{.numel = raw(all).n,
                            .shard = raw(mine),
                            .out = {all.data(), quant::Dtype::kF32, raw(all).n}};
  detail::begin_gather(comm, options, std::move(plan), std::span(&tensor, 1))->finish();
}

double sum_scalar(Comm& comm, Phase phase, double mine, quant::Role role) {
  double sum = 0;
  bool first = true;
  for (const double x : gather_one(comm, phase, role, mine)) {
    sum = first ? x : sum + x;
    first = false;
  }
  return sum;
}

double max_scalar(Comm& comm, Phase phase, double mine, quant::Role role) {
  const std::vector<double> all = gather_one(comm, phase, role, mine);
  double largest = all.front();
  for (const double x : all) {
    if (!(x <= largest)) largest = x;  // A NaN stays.
    if (largest != largest) break;
  }
  return largest;
}

}  // namespace zeropp::hierarchy
