#include "zero/memory_ledger.h"

#include <algorithm>
#include <numeric>

namespace zeropp::zero {
namespace {

std::uint64_t sum(const MemoryLedger::ByKind& kinds, std::size_t count) {
  return std::accumulate(kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(count),
                         std::uint64_t{0});
}

/// Model states are the kinds up to and including the secondary.
constexpr std::size_t kStateKinds = static_cast<std::size_t>(quant::MemoryKind::kSecondary) + 1;

}  // namespace

void MemoryLedger::on_allocate(quant::MemoryKind kind, std::size_t bytes) {
  const auto k = static_cast<std::size_t>(kind);
  current_[k] += bytes;
  peak_[k] = std::max(peak_[k], current_[k]);
  const std::uint64_t total = current_total();
  auto& phase = peak_by_phase_[static_cast<std::size_t>(phase_)];
  phase = std::max(phase, total);
  peak_total_ = std::max(peak_total_, total);
  peak_states_ = std::max(peak_states_, sum(current_, kStateKinds));
}

void MemoryLedger::on_free(quant::MemoryKind kind, std::size_t bytes) noexcept {
  // More freed than allocated is a bug of the caller; it must not turn into a huge figure.
  auto& current = current_[static_cast<std::size_t>(kind)];
  current -= std::min<std::uint64_t>(current, bytes);
}

void MemoryLedger::set_phase(hierarchy::Phase phase) {
  phase_ = phase;
  auto& peak = peak_by_phase_[static_cast<std::size_t>(phase)];
  peak = std::max(peak, current_total());
}

std::uint64_t MemoryLedger::current_total() const { return sum(current_, current_.size()); }

std::uint64_t MemoryLedger::peak_total(hierarchy::Phase phase) const {
  return peak_by_phase_[static_cast<std::size_t>(phase)];
}

void MemoryLedger::reset_peaks() {
  peak_ = current_;
  peak_total_ = current_total();
  peak_states_ = sum(current_, kStateKinds);
  // A phase that has not run since has no peak; the running one holds what is live.
  peak_by_phase_.fill(0);
  peak_by_phase_[static_cast<std::size_t>(phase_)] = peak_total_;
}

}  // namespace zeropp::zero
