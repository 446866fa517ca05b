#pragma once

#include <chrono>
#include <cstdint>

#include "hierarchy/collectives.h"
#include "zero/engine.h"

namespace zeropp::zero {

/// What the parts of one rank's engine share. Lives as long as the engine.
struct EngineContext {
  hierarchy::Comm& comm;
  const Model& model;
  MemoryLedger& memory;
  const EngineConfig config;
  std::uint64_t step =
      0;  ///< Steps begun before this one, skipped ones too: keys data and RNG.
  std::uint64_t version = 0;  ///< Applied updates: the version of the weights.
  std::uint64_t updates = 0;  ///< Of the optimizer since its moments were zero: Adam's t.
  std::uint32_t micro = 0;
  /// First sample of a step minus step * samples a step, modulo 2^64: other than 0 after a
  /// checkpoint of another global batch.
  std::uint64_t sample_shift = 0;
  hierarchy::Phase phase = hierarchy::Phase::kInit;
  double math_seconds = 0;
  quant::CodecState* codec_state = nullptr;  ///< Null: no codec keeps state.

  int rank() const { return comm.rank(); }
  int ranks() const { return comm.size(); }
  const std::vector<TensorSpec>& tensors() const { return model.tensors(); }
  const TensorSpec& tensor(std::uint32_t t) const { return model.tensors()[t]; }
  hierarchy::ChunkMap chunks(std::uint32_t t) const { return {tensor(t).numel, ranks()}; }
  std::size_t shard_size(std::uint32_t t, int modulus) const {
    return hierarchy::shard_elems(chunks(t), modulus, rank());
  }
  std::uint64_t samples_per_step() const {
    return static_cast<std::uint64_t>(config.gas) *
           static_cast<std::uint64_t>(config.micro_batch) * static_cast<std::uint64_t>(ranks());
  }
  void set_phase(hierarchy::Phase p) {
    phase = p;
    memory.set_phase(p);
  }
  hierarchy::CallOptions weight_call(int coarse, int fine) const {
    return {.algorithm = config.algorithm,
            .phase = phase,
            .role = quant::Role::kWeight,
            .coarse = coarse,
            .fine = fine,
            .seed = config.seed,
            .step = version,
            .state = codec_state};
  }
};

/// Adds the life time of the object to the rank's `math` seconds. Ops never yield, so wall time
/// on a fiber is worker time.
class MathTimer {
 public:
  explicit MathTimer(EngineContext& context)
      : context_(context), start_(std::chrono::steady_clock::now()) {}
  ~MathTimer() {
    context_.math_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  MathTimer(const MathTimer&) = delete;
  MathTimer& operator=(const MathTimer&) = delete;

 private:
  EngineContext& context_;
  std::chrono::steady_clock::time_point start_;
};

/// dst (shard at modulus `to`) = the same chunks of src (shard at modulus `from`, from divides
/// to), converted to dst's dtype.
void narrow_shard(const EngineContext& context, std::uint32_t tensor, quant::ConstView src,
                  int from, quant::MutView dst, int to);

/// Calls f(piece of a shard at modulus `from`, piece of the same chunk at modulus `to`) for
/// every chunk of this rank's shard at `to`; from divides to.
template <class F>
void for_each_piece(const EngineContext& context, std::uint32_t tensor, int from, int to, F f) {
  const auto outer = hierarchy::shard_pieces(context.chunks(tensor), from, context.rank());
  std::size_t i = 0;
  for (const auto& inner :
       hierarchy::shard_pieces(context.chunks(tensor), to, context.rank())) {
    while (outer[i].chunk != inner.chunk) ++i;
    f(outer[i], inner);
  }
}

}  // namespace zeropp::zero
