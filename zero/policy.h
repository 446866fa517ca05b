#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "quant/dtype.h"

namespace zeropp::zero {

/// When gradients are reduced across ranks.
enum class ReduceAt : std::uint8_t {
  kBoundary,   ///< Once a step, after local accumulation (stages 0 and 1 by default).
  kMicroStep,  ///< After every micro-step (2, 3, HSDP).
  kTwoHop,     ///< Inner hops every micro-step, the outermost at the boundary (MiCS).
};

/// A ZeRO stage or scheme as data. Each state is sharded with a modulus (hierarchy/chunks.h):
/// 1 = on every rank whole, N = over the world, else over groups of that many ranks.
/// The engine reads this and never compares stage numbers.
struct StagePolicy {
  int stage = 0;            ///< For tables only.
  std::string_view scheme;  ///< "", "hsdp", "mics": for tables only.
  int params = 1;
  int grads = 1;
  int optimizer = 1;
  int secondary = 0;  ///< hpZ: modulus of the extra copy of the parameters; 0 = none.
  bool all_reduce =
      false;  ///< Gradients end on every rank whole (stage 0; stage 1 the 3Ψ way).
  ReduceAt reduce_at = ReduceAt::kBoundary;

  bool gathers_at_step() const { return params < optimizer; }
  bool gathers_units() const { return params > 1; }
};

/// What the user asked for, before the topology is known.
struct SchemeRequest {
  int stage = 0;
  bool stage1_all_reduce = false;  ///< 3Ψ instead of 2Ψ.
  int secondary = 0;               ///< Group size in ranks; 0 or 1 = off.
  int mics_group = 0;              ///< MiCS: all states sharded in groups of that size.
  int hsdp_group = 0;              ///< HSDP: likewise, reduced at every micro-step.
  std::string reduce_at = {};      ///< "", "boundary", "micro_step", "two_hop".
};

/// UsageError for every combination that makes no sense: secondary without params over the
/// world, sizes that do not divide N, two schemes at once, two_hop without mics, ...
StagePolicy make_policy(const SchemeRequest& request, int ranks);

/// Bytes an element of each state takes.
struct StateLayout {
  quant::Dtype param = quant::Dtype::kBF16;
  quant::Dtype grad = quant::Dtype::kBF16;
  quant::Dtype accum = quant::Dtype::kBF16;  ///< Differs from grad: a second gradient buffer.
  bool adam = true;                          ///< Else SGD: momentum only if `momentum`.
  bool momentum = true;
};

struct StateBytes {
  std::uint64_t params = 0, grads = 0, master = 0, momentum = 0, variance = 0, secondary = 0;
  std::uint64_t total() const {
    return params + grads + master + momentum + variance + secondary;
  }
  StateBytes& operator+=(const StateBytes& o);
};
/// Model-state bytes of one tensor on one rank, by the chunk sizes of the owner map.
StateBytes state_bytes(const StagePolicy& policy, const StateLayout& layout,
                       std::uint64_t numel, int ranks, int rank);

}  // namespace zeropp::zero
