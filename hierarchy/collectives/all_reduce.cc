// All-reduce: a reduce-scatter whose results stay in the wire dtype, and an exact all-gather of
// them. `out` may be `in`: it is written when no peer reads the input any more.

#include <utility>

#include "hierarchy/collectives/gather.h"
#include "hierarchy/collectives/reduce.h"

namespace zeropp::hierarchy {
namespace {

void check_outputs(const detail::ReduceCall& call, std::span<const ReduceTensor> tensors) {
  for (const ReduceTensor& t : tensors) {
    detail::check_elems("out", t.tensor,
                        shard_elems(call.map(t), call.plan.coarse, call.rank()), t.out.n);
  }
}

}  // namespace

void all_reduce(Comm& comm, const CallOptions& options, const ReduceOptions& reduce,
                std::span<const ReduceTensor> tensors) {
  detail::CallPlan plan = detail::plan_call(comm, options, Collective::kAllReduce);
  // The fault "not rounded to the wire dtype" would not survive a gather in the wire dtype.
  const quant::Dtype kept = reduce.test_skip_rounding ? quant::Dtype::kF32 : reduce.wire;
  std::vector<quant::Tensor> results;
  std::vector<ReduceTensor> scattered(tensors.begin(), tensors.end());
  for (ReduceTensor& t : scattered) {
    const ChunkMap map{t.numel, comm.size()};
    results.emplace_back(comm.memory, quant::MemoryKind::kComm, kept,
                         shard_elems(map, plan.fine, comm.rank()));
    t.out = results.back().view();
  }
  plan.call.content = detail::content_of(plan, reduce, tensors);
  const detail::ReduceCall call{comm, options, reduce, plan, scattered};
  detail::check_reduce(call);
  check_outputs(call, tensors);
  comm.transport.ledger().collective(plan.call);
  detail::run_reduce(call);

  std::vector<GatherTensor> gathered;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool same = tensors[i].out.dtype == kept;
    gathered.push_back({.tensor = tensors[i].tensor,
                        .numel = tensors[i].numel,
                        .shard = std::as_const(results[i]).view(),
                        .out = tensors[i].out,
                        .codec = same ? nullptr : &detail::cast_codec(kept)});
  }
  plan.call.hop = static_cast<std::uint8_t>(plan.hops());
  detail::begin_gather(comm, options, std::move(plan), gathered)->finish();
}

}  // namespace zeropp::hierarchy
