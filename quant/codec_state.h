#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "quant/codec.h"
#include "quant/memory.h"

namespace zeropp::quant {

/// Whose residual it is: one sender's (or, at a receiver, one source's) numbers for one span of
/// one hop, kept by the decorator whose whole spec this is.
struct ResidualKey {
  Role role = Role::kGradient;
  std::uint32_t tensor = 0;
  std::uint32_t part = 0;
  std::uint32_t level = 0;
  bool second_hop = false;
  bool receiver = false;
  std::uint32_t source = 0;  ///< At a receiver: place among the sources of the sum; else 0.
  std::string decorator;

  static ResidualKey of(const CodecContext& ctx, const std::string& decorator);
  friend auto operator<=>(const ResidualKey&, const ResidualKey&) = default;
};

/// How residuals are kept.
struct ResidualStore {
  const Codec* codec = nullptr;  ///< A fixed-rate codec without state; null: fp32.
  std::uint64_t reset = 0;       ///< Zeroed whenever that many steps were applied; 0 = never.
};

/// The numbers of one key: what the last applied step left, and what the step in hand has made
/// of it. Both are allocated at the first use, zero until written.
class Residual {
 public:
  Residual(MemoryTracker* memory, std::size_t n, const ResidualStore& store);

  std::size_t size() const { return n_; }
  /// The numbers as the micro-step before left them, in place or decoded into `scratch`.
  const float* read(Tensor& scratch) const;
  /// Replaces them, for this step: until commit or rollback.
  void write(const float* values);

  bool pending() const { return pending_; }
  void commit(std::uint64_t applied);
  void rollback() { pending_ = false; }
  void start(const float* values);  ///< As committed.
  /// What is committed, as it is kept.
  std::span<const std::byte> raw() const { return kept_.span(); }
  void set_raw(std::span<const std::byte> bytes);
  const ResidualStore& store() const { return store_; }

 private:
  std::size_t n_;
  ResidualStore store_;
  Buffer kept_, next_;
  bool pending_ = false;
};

/// A committed residual as a checkpoint of the same run holds it, to the bit.
struct ResidualPiece {
  ResidualKey key;
  std::size_t n = 0;
  std::string store;  ///< "fp32", or the spec of the codec that the bytes are of.
  std::vector<std::byte> bytes;
};

/// A residual as a function of the elements of its tensor: what outlives a change of N.
struct LogicalResidual {
  Role role = Role::kGradient;
  std::uint32_t tensor = 0, level = 0;
  bool second_hop = false;
  std::string decorator;
  std::vector<float> values;  ///< One an element of the tensor.
};

/// State of one rank's stateful codecs.
///
/// Unscaled: gradients travel multiplied by the loss scale, residuals do not, so that a change
/// of the scale needs nothing. Exact where the scale is a power of two (but for subnormals).
///
/// Transactions: the micro-steps of a step see each other's residuals; commit() keeps what they
/// left, rollback() forgets it, so that a skipped step (a NaN or Inf anywhere) leaves state as
/// if it had not been. A residual says what was sent: codecs run before clipping, so it is in
/// units of the unclipped gradient.
///
/// Another N or topology: the codec of a mean loses the mean of what its senders lose. Merging
/// takes for each element the mean over the residuals of all ranks that send it in that hop, in
/// rank order; each sender at the new N starts with that mean, so the mean that is still to be
/// sent is preserved. Where one rank sends an element (weights) nothing is lost. What receivers
/// keep is equal to what senders keep, so it starts with the same numbers. Residuals of a level
/// that the new topology does not use are dropped.
class CodecState {
 public:
  explicit CodecState(MemoryTracker* memory = nullptr) : memory_(memory) {}
  CodecState(const CodecState&) = delete;
  CodecState& operator=(const CodecState&) = delete;

  /// What numbers of the role are multiplied by: the loss scale for gradients, 1 else.
  float scale(Role role) const { return role == Role::kGradient ? gradient_scale_ : 1.0F; }
  void set_gradient_scale(float scale) { gradient_scale_ = scale; }

  /// Made (zero, or cut from what was adopted) at its first use. UsageError if it is there with
  /// another n. References stay valid.
  Residual& residual(const ResidualKey& key, std::size_t n, const ResidualStore& store);

  /// The step of a role was applied. UsageError if restored pieces found no codec in it.
  void commit(Role role);
  void rollback(Role role);
  /// Forgets everything but the counts of applied steps.
  void clear();
  /// Steps of a role that were committed: what `reset` counts.
  std::uint64_t applied(Role role) const { return applied_[static_cast<std::size_t>(role)]; }
  void set_applied(Role role, std::uint64_t steps) {
    applied_[static_cast<std::size_t>(role)] = steps;
  }
  bool empty() const { return residuals_.empty(); }

  /// All that is committed, and what was restored and waits for its codec. UsageError in the
  /// midst of a step. What was adopted counts once a codec has taken it.
  std::vector<ResidualPiece> pieces() const;
  /// The opposite, at the same N, topology and codecs: before the first step, or after clear().
  void restore(std::span<const ResidualPiece> pieces);
  /// Residuals of another N: those that are not there yet start with their elements of
  /// `logical`, whose tensors are cut in `ranks` chunks. Kept until the role's next commit.
  void adopt(const std::vector<LogicalResidual>& logical, int ranks);

 private:
  struct Adopted {
    Role role;
    std::uint32_t tensor, level;
    bool second_hop;
    std::string decorator;
    std::size_t chunk;
    Tensor values;
    bool is_for(const ResidualKey& key) const;
  };
  void start_from_adopted(const ResidualKey& key, Residual& residual);

  MemoryTracker* memory_;
  float gradient_scale_ = 1.0F;
  std::uint64_t applied_[5] = {};
  std::map<ResidualKey, Residual> residuals_;
  std::vector<Adopted> adopted_;
  /// What pieces were restored as, until their codec comes and takes them.
  std::map<ResidualKey, ResidualPiece> restored_;
};

/// The rule above: the pieces of all ranks (one list a rank, in rank order), as functions of
/// the elements. `numel` of a tensor by its index; receivers' pieces are left out.
std::vector<LogicalResidual> merge_residuals(
    std::span<const std::vector<ResidualPiece>> by_rank,
    const std::function<std::size_t(std::uint32_t tensor)>& numel);

}  // namespace zeropp::quant
