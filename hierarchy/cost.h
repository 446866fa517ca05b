#pragma once

#include <map>
#include <span>

#include "hierarchy/collectives.h"

namespace zeropp::hierarchy {

/// Price of one call on one rank: what it sends on each link class. Derived from the
/// algorithms' formulas, not from their code; tests require equality with the ledger to the
/// byte (an upper bound for variable-rate codecs).
struct Cost {
  std::map<int, Traffic> by_link;
  int steps = 0;  ///< Exchanges one after the other: hops, or the ring's N - 1.
  Cost& operator+=(const Cost& o);
  Traffic total() const;
};

/// The shape of one tensor of a call, without data.
struct CostTensor {
  std::size_t numel = 0;
  quant::Dtype dtype = quant::Dtype::kF32;      ///< Gathers without codec send this dtype.
  const quant::Codec* gather_codec = nullptr;   ///< all_gather, all_to_all, broadcast.
  std::span<const quant::Codec* const> codecs;  ///< Reductions; empty = exact wire dtype.
};

Cost all_gather_cost(const Topology& t, int rank, const CallOptions& o,
                     std::span<const CostTensor> tensors);
Cost reduce_scatter_cost(const Topology& t, int rank, const CallOptions& o,
                         const ReduceOptions& r, std::span<const CostTensor> tensors);
Cost all_reduce_cost(const Topology& t, int rank, const CallOptions& o, const ReduceOptions& r,
                     std::span<const CostTensor> tensors);
/// numel of the tensor = elements per destination.
Cost all_to_all_cost(const Topology& t, int rank, const CallOptions& o,
                     const CostTensor& tensor);
Cost broadcast_cost(const Topology& t, int rank, const CallOptions& o, int root,
                    const CostTensor& tensor);
Cost gather_scalars_cost(const Topology& t, int rank, std::size_t doubles);

}  // namespace zeropp::hierarchy
