#include "hierarchy/collectives/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quant/convert.h"
#include "quant/error.h"

namespace zeropp::hierarchy::detail {

using quant::ConstView;
using quant::Dtype;
using quant::MutView;

const quant::Codec& ReduceCall::codec(const ReduceTensor& t, int hop) const {
  const quant::Codec* found =
      t.codecs.empty() ? nullptr : t.codecs[static_cast<std::size_t>(level(hop))];
  return found != nullptr ? *found : cast_codec(reduce.wire);
}

int ReduceCall::level(int hop) const {
  return hop_level(comm.transport.topology(), plan.chain[static_cast<std::size_t>(hop) + 1]);
}

CallContent content_of(const CallPlan& plan, const ReduceOptions& reduce,
                       std::span<const ReduceTensor> tensors) {
  ContentHash hash(plan, reduce.wire);
  for (const ReduceTensor& t : tensors) {
    if (t.codecs.empty()) hash.add(t.tensor, t.numel, nullptr);
    for (std::size_t i = 0; i < t.codecs.size(); ++i) {
      hash.add(t.tensor, i == 0 ? t.numel : 0, t.codecs[i]);
    }
  }
  return hash.content();
}

void check_reduce(const ReduceCall& call) {
  const double f = call.reduce.predivide;
  if (!std::isfinite(f) || f < 0) {
    throw UsageError("collectives", "a finite predivide factor > 0, or 0",
                     fmt::format("{}", f));
  }
  const auto levels = static_cast<std::size_t>(call.comm.transport.topology().levels());
  for (const ReduceTensor& t : call.tensors) {
    const ChunkMap map = call.map(t);
    check_elems("in", t.tensor, shard_elems(map, call.plan.coarse, call.rank()), t.in.n);
    check_elems("out", t.tensor, shard_elems(map, call.plan.fine, call.rank()), t.out.n);
    if (!t.codecs.empty() && t.codecs.size() != levels) {
      throw UsageError("collectives", fmt::format("{} codecs, one a level, or none", levels),
                       std::to_string(t.codecs.size()));
    }
    for (const quant::Codec* codec : t.codecs) {
      refuse_difference(codec, call.plan.call.collective);
    }
    const bool coded = std::any_of(t.codecs.begin(), t.codecs.end(),
                                   [](const quant::Codec* codec) { return codec != nullptr; });
    if (coded && call.options.algorithm == Algorithm::kRing) {
      throw UsageError("collectives",
                       "no gradient codecs with the ring, which rounds partial sums",
                       fmt::format("codecs for tensor {}", t.tensor));
    }
  }
}

void run_reduce(const ReduceCall& call) {
  if (call.plan.hops() == 0) {
    ResultRounder rounder(call);
    for (const ReduceTensor& t : call.tensors) rounder.copy(t.in, t.out);
  } else if (call.options.algorithm == Algorithm::kRing) {
    run_ring_reduce(call);
  } else {
    run_hop_reduce(call);
  }
}

ResultRounder::ResultRounder(const ReduceCall& call)
    : call_(call),
      post_(call.post_divisor()),
      counts_(call.options.underflow != nullptr && call.reduce.wire != Dtype::kF32 &&
              !call.reduce.test_skip_rounding),
      slice_(call.comm.memory, quant::MemoryKind::kComm, kSlice * size_of(Dtype::kF32)) {}

bool ResultRounder::is_plain(Dtype out) const {
  if (post_ != 1.0F || counts_) return false;
  return out == call_.reduce.wire || call_.reduce.wire == Dtype::kF32 ||
         call_.reduce.test_skip_rounding;
}

void ResultRounder::round(MutView sum, MutView out) {
  if (post_ != 1.0F) quant::divide(sum, post_, sum);
  copy(sum, out);
}

void ResultRounder::copy(ConstView in, MutView out) {
  for (std::size_t first = 0; first < in.n; first += kSlice) {
    const std::size_t n = std::min(kSlice, in.n - first);
    round_slice(in.slice(first, n), out.slice(first, n));
  }
}

void ResultRounder::round_slice(ConstView x, MutView out) {
  const Dtype wire = call_.reduce.wire;
  if (wire == Dtype::kF32 || call_.reduce.test_skip_rounding) {
    quant::convert(x, out);
    return;
  }
  const MutView rounded{slice_.data(), wire, x.n};
  const quant::CodecContext counting{.underflow = call_.options.underflow};
  cast_codec(wire).encode(x, counting, rounded.as_bytes());
  quant::convert(rounded, out);
}

}  // namespace zeropp::hierarchy::detail
