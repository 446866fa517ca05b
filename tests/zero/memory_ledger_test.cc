#include "zero/memory_ledger.h"

#include <gtest/gtest.h>

namespace zeropp::zero {
namespace {

using hierarchy::Phase;
using quant::MemoryKind;

std::uint64_t of(const MemoryLedger::ByKind& kinds, MemoryKind kind) {
  return kinds[static_cast<std::size_t>(kind)];
}

TEST(MemoryLedger, CurrentAndPeakByKind) {
  MemoryLedger ledger;
  ledger.on_allocate(MemoryKind::kParams, 100);
  ledger.on_allocate(MemoryKind::kComm, 50);
  ledger.on_free(MemoryKind::kComm, 50);
  ledger.on_allocate(MemoryKind::kGrads, 30);
  EXPECT_EQ(ledger.current_total(), 130u);
  EXPECT_EQ(ledger.peak_total(), 150u);
  EXPECT_EQ(of(ledger.current(), MemoryKind::kComm), 0u);
  EXPECT_EQ(of(ledger.peak_by_kind(), MemoryKind::kComm), 50u);
  EXPECT_EQ(of(ledger.peak_by_kind(), MemoryKind::kGrads), 30u);
}

TEST(MemoryLedger, ModelStatesAreTheSixKindsAtOneMoment) {
  MemoryLedger ledger;
  std::uint64_t bytes = 1;
  for (MemoryKind kind :
       {MemoryKind::kParams, MemoryKind::kGrads, MemoryKind::kMaster, MemoryKind::kMomentum,
        MemoryKind::kVariance, MemoryKind::kSecondary}) {
    ledger.on_allocate(kind, bytes);
    bytes *= 10;
  }
  for (MemoryKind kind : {MemoryKind::kGathered, MemoryKind::kComm, MemoryKind::kResidual,
                          MemoryKind::kActivation, MemoryKind::kWorkspace, MemoryKind::kHost}) {
    ledger.on_allocate(kind, 5'000'000);
  }
  EXPECT_EQ(ledger.peak_model_states(), 111'111u);
  // Peaks of two kinds at different times do not add up.
  ledger.on_free(MemoryKind::kSecondary, 100'000);
  ledger.on_allocate(MemoryKind::kGrads, 50'000);
  EXPECT_EQ(ledger.peak_model_states(), 111'111u);
}

TEST(MemoryLedger, PeaksByPhase) {
  MemoryLedger ledger;
  ledger.on_allocate(MemoryKind::kParams, 100);
  ledger.set_phase(Phase::kForward);
  ledger.on_allocate(MemoryKind::kActivation, 40);
  ledger.set_phase(Phase::kBackward);  // Starts with what is live.
  ledger.on_free(MemoryKind::kActivation, 40);
  ledger.set_phase(Phase::kForward);
  ledger.on_allocate(MemoryKind::kActivation, 10);
  EXPECT_EQ(ledger.peak_total(Phase::kInit), 100u);
  EXPECT_EQ(ledger.peak_total(Phase::kForward), 140u);
  EXPECT_EQ(ledger.peak_total(Phase::kBackward), 140u);
  EXPECT_EQ(ledger.peak_total(Phase::kEval), 0u);
}

TEST(MemoryLedger, ResetMakesPeaksCurrent) {
  MemoryLedger ledger;
  ledger.on_allocate(MemoryKind::kGrads, 70);
  ledger.on_allocate(MemoryKind::kWorkspace, 30);
  ledger.on_free(MemoryKind::kGrads, 50);
  ledger.set_phase(Phase::kStep);
  ledger.reset_peaks();
  EXPECT_EQ(ledger.peak_total(), 50u);
  EXPECT_EQ(ledger.peak_model_states(), 20u);
  EXPECT_EQ(of(ledger.peak_by_kind(), MemoryKind::kGrads), 20u);
  EXPECT_EQ(ledger.peak_total(Phase::kStep), 50u);
  EXPECT_EQ(ledger.peak_total(Phase::kInit), 0u);
}

TEST(MemoryLedger, FreeingTooMuchDoesNotWrap) {
  MemoryLedger ledger;
  ledger.on_allocate(MemoryKind::kComm, 10);
  ledger.on_allocate(MemoryKind::kHost, 5);
  ledger.on_free(MemoryKind::kComm, 11);
  EXPECT_EQ(of(ledger.current(), MemoryKind::kComm), 0u);
  EXPECT_EQ(ledger.current_total(), 5u);
  ledger.on_free(MemoryKind::kHost, ~std::size_t{0});
  EXPECT_EQ(ledger.current_total(), 0u);
  ledger.on_allocate(MemoryKind::kComm, 3);
  EXPECT_EQ(ledger.peak_total(), 15u);
}

TEST(MemoryLedger, BuffersBookThemselves) {
  MemoryLedger ledger;
  {
    quant::Buffer a(&ledger, MemoryKind::kWorkspace, 100);
    quant::Buffer b = std::move(a);
    EXPECT_EQ(of(ledger.current(), MemoryKind::kWorkspace), 100u);
    quant::Tensor t(&ledger, MemoryKind::kParams, quant::Dtype::kBF16, 7);
    EXPECT_EQ(of(ledger.current(), MemoryKind::kParams), 14u);
  }
  EXPECT_EQ(ledger.current_total(), 0u);
  EXPECT_EQ(ledger.peak_total(), 114u);
}

}  // namespace
}  // namespace zeropp::zero
