#pragma once

#include <array>
#include <cstdint>

#include "hierarchy/ledger.h"
#include "quant/memory.h"

namespace zeropp::zero {

/// Current and peak bytes of one rank by kind and phase.
class MemoryLedger : public quant::MemoryTracker {
 public:
  using ByKind = std::array<std::uint64_t, quant::kMemoryKinds>;
  void on_allocate(quant::MemoryKind kind, std::size_t bytes) override;
  /// Stops at zero: freeing more than was allocated is the caller's bug, never a huge figure.
  void on_free(quant::MemoryKind kind, std::size_t bytes) noexcept override;

  /// Peaks are kept per phase; set_phase starts or continues one.
  void set_phase(hierarchy::Phase phase);
  const ByKind& current() const { return current_; }
  std::uint64_t current_total() const;
  std::uint64_t peak_total() const { return peak_total_; }  ///< Any phase.
  std::uint64_t peak_total(hierarchy::Phase phase) const;
  ByKind peak_by_kind() const { return peak_; }  ///< Each kind's own peak.
  /// Peak of params + grads + master + momentum + variance + secondary together.
  std::uint64_t peak_model_states() const { return peak_states_; }
  /// Peaks := current; phases that have not run since have none.
  void reset_peaks();

 private:
  ByKind current_{}, peak_{};
  std::array<std::uint64_t, 8> peak_by_phase_{};
  std::uint64_t peak_total_ = 0, peak_states_ = 0;
  hierarchy::Phase phase_ = hierarchy::Phase::kInit;
};

}  // namespace zeropp::zero
