#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hierarchy/chunks.h"
#include "hierarchy/ledger.h"
#include "hierarchy/transport.h"
#include "quant/codec.h"
#include "quant/memory.h"

namespace zeropp::hierarchy {

/// What the collectives need of a rank besides its transport.
struct Comm {
  Transport& transport;
  quant::MemoryTracker* memory = nullptr;  ///< Scratch is booked as MemoryKind::kComm.
  double codec_seconds = 0;                ///< Time inside encode and decode, added to.

  int rank() const { return transport.rank(); }
  int size() const { return transport.size(); }
};

/// Common to all calls. A shard with modulus M is defined in chunks.h; collectives move tensors
/// between a coarse modulus (fewer, larger shards) and a fine one (coarse divides fine divides
/// N):
///   all-gather      fine -> coarse   world: N -> 1, hpZ: S -> 1, HSDP outer: N -> S
///   reduce-scatter  coarse -> fine   world: 1 -> N, MiCS inner: 1 -> S, MiCS outer: S -> N
/// The group of a call is the ranks that agree mod `coarse` inside a block of `fine` ranks.
///
/// Algorithms: ring (neighbour to neighbour inside the group), all_to_all (one hop, direct),
/// and hierarchical: one hop for each step of the chain coarse = m0 | m1 | ... = fine through
/// the topology's prefix sizes (1, F0, F0*F1, ...); innermost hop first for reductions, last
/// for gathers. The codec of a hop m -> m' is that of the innermost level whose group holds m'
/// ranks. A level of fan-out 1 makes no hop and its codec is not used. `native` is refused
/// (UsageError): it needs NCCL.
///
/// A codec's span is one (tensor, world chunk); empty chunks are never encoded, and empty
/// messages are not sent. The context of a span in a reduction names the encoding rank as
/// sender and the level of the hop; in a gather the chunk's world owner and hop_level(fine), so
/// that groups that hold the same shards decode the same values. Variable-rate codecs put the
/// size of each span before it as u64, booked as `scale`.
struct CallOptions {
  Algorithm algorithm = Algorithm::kHierarchical;
  Phase phase = Phase::kOther;
  quant::Role role = quant::Role::kWeight;
  int coarse = 1;
  int fine = 0;            ///< 0 = N.
  std::uint64_t seed = 0;  ///< Codec context.
  std::uint64_t step = 0;  ///< Step, or version of the weights.
  std::uint32_t micro = 0;
  /// This rank's, for codecs with state. The keys of residuals are those of the contexts above:
  /// a (tensor, hop) takes part in one call a micro-step.
  quant::CodecState* state = nullptr;
  std::uint64_t* underflow = nullptr;
};

/// One tensor of an all-gather.
struct GatherTensor {
  std::uint32_t tensor = 0;
  std::size_t numel = 0;
  quant::ConstView shard;  ///< This rank's shard at modulus `fine`.
  quant::MutView out;      ///< Its shard at modulus `coarse`; may not overlap `shard`.
  /// Null: exact, the elements as they are (shard and out have the same dtype). Else every
  /// world chunk is encoded once by its holder, forwarded as bytes, and decoded by every rank,
  /// the holder too.
  /// With CodecTraits::difference `shard` is fp32 differences and `out` holds what they are
  /// differences to: every rank, the holder too, sets out = round(out + decoded), an fp32 sum
  /// and one rounding to out's dtype. Copies of `out` that were equal stay equal to the bit.
  /// Gathers alone know such codecs: no other collective has a reference (UsageError).
  const quant::Codec* codec = nullptr;
};

/// A gather that was started. All ranks start and finish gathers in the same order; one that is
/// dropped unfinished leaves its peers waiting, so only an error may do that.
class PendingGather {
 public:
  class Impl;
  PendingGather();
  explicit PendingGather(std::unique_ptr<Impl> impl);
  PendingGather(PendingGather&&) noexcept;
  PendingGather& operator=(PendingGather&&) noexcept;
  ~PendingGather();
  void finish();  ///< Outputs are final afterwards. Idempotent.
  explicit operator bool() const { return impl_ != nullptr; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Encodes and starts the first hop; views must stay valid until finish(). The tensors of one
/// call share messages (one per peer and hop).
PendingGather start_all_gather(Comm& comm, const CallOptions& options,
                               std::span<const GatherTensor> tensors);
inline void all_gather(Comm& comm, const CallOptions& options,
                       std::span<const GatherTensor> tensors) {
  start_all_gather(comm, options, tensors).finish();
}

/// One tensor of a reduction.
struct ReduceTensor {
  std::uint32_t tensor = 0;
  std::size_t numel = 0;
  quant::ConstView in;  ///< Shard at modulus `coarse`.
  quant::MutView out;   ///< reduce_scatter: shard at modulus `fine`; all_reduce: at `coarse`.
  /// One codec per level of the topology, innermost first; empty: exact in the wire dtype.
  /// Not allowed with the ring (UsageError).
  std::span<const quant::Codec* const> codecs;
};

/// How a mean is formed. What travels are partial means: each hop divides its fp32 sum by its
/// fan-out; the ring divides its input in fp32 before the first rounding and rounds partial
/// sums to the wire dtype at every hop, starting at the rank after the owner. predivide f != 0
/// moves a factor N/f (N = fine/coarse) behind the last sum. Where coarse == fine there is no
/// hop: no codec, no division, only the rounding of results.
struct ReduceOptions {
  quant::Dtype wire = quant::Dtype::kF32;  ///< communication_data_type; what null codecs send.
  double predivide = 0;
  /// Deliberate faults for tests that must notice them; never set otherwise.
  bool test_skip_rounding = false;  ///< Result not rounded to the wire dtype at the owner.
  bool test_reverse_order = false;  ///< Sources summed in reverse order.
  bool test_own_unrounded = false;  ///< Own contribution skips encode and decode.
};

/// out = mean over the group of `in`, rounded to the wire dtype, then to out's dtype. A rank's
/// own contribution takes the same encode and decode as everyone's at every hop; sums are fp32,
/// start from the first source and go in rank order. `out` may not overlap `in`.
void reduce_scatter(Comm& comm, const CallOptions& options, const ReduceOptions& reduce,
                    std::span<const ReduceTensor> tensors);
/// reduce_scatter, then an exact all-gather of the results in the wire dtype (booked under
/// kAllReduce; `hop` goes on counting), then the rounding to out's dtype. `out` may be `in`.
void all_reduce(Comm& comm, const CallOptions& options, const ReduceOptions& reduce,
                std::span<const ReduceTensor> tensors);

/// Block i of `in` (n elements) goes to rank i; block j of `out` came from rank j. World group;
/// all_to_all or hierarchical (codec null: exact; else encoded at the source, decoded at the
/// destination, own block too; context: tensor 0, part = destination). The ring is refused.
struct AllToAllArgs {
  quant::ConstView in;
  quant::MutView out;
  std::size_t n = 0;
  const quant::Codec* codec = nullptr;
};
void all_to_all(Comm& comm, const CallOptions& options, const AllToAllArgs& args);

/// Everyone ends with the root's elements (codec null: exact; else all decode the root's bytes,
/// the root too; context: tensor 0, part 0). ring: a chain; all_to_all: root sends to all;
/// hierarchical: outermost first.
void broadcast(Comm& comm, const CallOptions& options, int root, quant::MutView data,
               const quant::Codec* codec = nullptr);

/// all[r*k .. r*k+k) = rank r's k doubles, exactly, hierarchical whatever the option says.
/// Reductions of scalars fold this in rank order.
void gather_scalars(Comm& comm, Phase phase, quant::Role role, std::span<const double> mine,
                    std::span<double> all);
double sum_scalar(Comm& comm, Phase phase, double mine,
                  quant::Role role = quant::Role::kScalar);
double max_scalar(Comm& comm, Phase phase, double mine,
                  quant::Role role = quant::Role::kScalar);

/// Chain of moduli that a call walks (see CallOptions): {coarse, ..., fine}.
std::vector<int> hop_chain(const Topology& topology, Algorithm algorithm, int coarse, int fine);
/// Level whose codec a hop uses.
int hop_level(const Topology& topology, int fine);

}  // namespace zeropp::hierarchy
