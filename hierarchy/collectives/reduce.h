#pragma once

#include <span>
#include <vector>

#include "hierarchy/collectives/common.h"

namespace zeropp::hierarchy::detail {

/// A reduce-scatter that is booked as `plan.call`, checked and without side effects yet.
struct ReduceCall {
  Comm& comm;
  const CallOptions& options;
  const ReduceOptions& reduce;
  CallPlan plan;
  std::span<const ReduceTensor> tensors;

  int rank() const { return comm.rank(); }
  ChunkMap map(const ReduceTensor& t) const { return {t.numel, comm.size()}; }
  /// The codec of the hop plan.chain[hop] -> plan.chain[hop + 1].
  const quant::Codec& codec(const ReduceTensor& t, int hop) const;
  int level(int hop) const;
  /// fine / coarse: the ranks whose mean is formed.
  double ranks() const { return static_cast<double>(plan.fine) / plan.coarse; }
  /// What is divided by behind the last sum; 1 unless predivide is set.
  float post_divisor() const {
    return reduce.predivide == 0 ? 1.0F : static_cast<float>(ranks() / reduce.predivide);
  }
};

/// What all ranks of a reduction must agree on.
CallContent content_of(const CallPlan& plan, const ReduceOptions& reduce,
                       std::span<const ReduceTensor> tensors);

/// UsageError for shapes, codec lists and options that the call cannot have.
void check_reduce(const ReduceCall& call);
/// Runs the algorithm; `out` of a tensor is the shard at plan.fine, in any dtype.
void run_reduce(const ReduceCall& call);
void run_ring_reduce(const ReduceCall& call);
void run_hop_reduce(const ReduceCall& call);

/// The owner's last step: division behind the sum, rounding to the wire dtype, then to out's.
class ResultRounder {
 public:
  explicit ResultRounder(const ReduceCall& call);

  /// True if rounding the fp32 sum to that dtype is all that is left to do.
  bool is_plain(quant::Dtype out) const;
  /// True if the one rounding to `out` (the wire dtype) is the result.
  bool is_direct(quant::Dtype out) const { return post_ == 1.0F && out == call_.reduce.wire; }
  /// out = result of the fp32 sum, which is scratch afterwards.
  void round(quant::MutView sum, quant::MutView out);
  /// The same from any dtype, without a division: a mean over one rank.
  void copy(quant::ConstView in, quant::MutView out);

 private:
  void round_slice(quant::ConstView x, quant::MutView out);

  const ReduceCall& call_;
  float post_;
  bool counts_ = false;
  quant::Buffer slice_;
};

/// Elements that are worked on at a time where several passes follow each other.
inline constexpr std::size_t kSlice = 4096;

}  // namespace zeropp::hierarchy::detail
