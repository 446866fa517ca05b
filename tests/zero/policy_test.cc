#include "zero/policy.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/error.h"

namespace zeropp::zero {
namespace {

using quant::Dtype;
using testing::HasSubstr;

std::string error_of(const SchemeRequest& request, int ranks) {
  try {
    make_policy(request, ranks);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(Policy, StagesShardWhatTheTableSays) {
  struct Row {
    int stage, params, grads, optimizer;
    bool all_reduce;
    ReduceAt at;
    bool at_step, units;
  };
  for (const Row& row : {Row{0, 1, 1, 1, true, ReduceAt::kBoundary, false, false},
                         Row{1, 1, 1, 8, false, ReduceAt::kBoundary, true, false},
                         Row{2, 1, 8, 8, false, ReduceAt::kMicroStep, true, false},
                         Row{3, 8, 8, 8, false, ReduceAt::kMicroStep, false, true}}) {
    SCOPED_TRACE(row.stage);
    const StagePolicy p = make_policy({.stage = row.stage}, 8);
    EXPECT_EQ(p.stage, row.stage);
    EXPECT_EQ(p.scheme, "");
    EXPECT_EQ(p.params, row.params);
    EXPECT_EQ(p.grads, row.grads);
    EXPECT_EQ(p.optimizer, row.optimizer);
    EXPECT_EQ(p.secondary, 0);
    EXPECT_EQ(p.all_reduce, row.all_reduce);
    EXPECT_EQ(p.reduce_at, row.at);
    EXPECT_EQ(p.gathers_at_step(), row.at_step);
    EXPECT_EQ(p.gathers_units(), row.units);
  }
}

TEST(Policy, Stage1HasTheThreePsiWay) {
  const StagePolicy p = make_policy({.stage = 1, .stage1_all_reduce = true}, 4);
  EXPECT_TRUE(p.all_reduce);
  EXPECT_EQ(p.grads, 1);
  EXPECT_EQ(p.optimizer, 4);
}

TEST(Policy, SecondaryIsAnyDivisorAndOneIsOff) {
  for (int size : {0, 1})
    EXPECT_EQ(make_policy({.stage = 3, .secondary = size}, 12).secondary, 0);
  for (int size : {2, 3, 4, 6, 12}) {
    const StagePolicy p = make_policy({.stage = 3, .secondary = size}, 12);
    EXPECT_EQ(p.secondary, size);
    EXPECT_EQ(p.params, 12);
  }
  // 0 and 1 are off at every stage, so a sweep over stages may carry them.
  EXPECT_EQ(make_policy({.stage = 2, .secondary = 1}, 12).secondary, 0);
}

TEST(Policy, GroupsShardAllStates) {
  const StagePolicy mics = make_policy({.stage = 3, .mics_group = 4}, 8);
  EXPECT_EQ(mics.scheme, "mics");
  EXPECT_EQ(mics.reduce_at, ReduceAt::kTwoHop);
  const StagePolicy hsdp = make_policy({.stage = 3, .hsdp_group = 4}, 8);
  EXPECT_EQ(hsdp.scheme, "hsdp");
  EXPECT_EQ(hsdp.reduce_at, ReduceAt::kMicroStep);
  for (const StagePolicy& p : {mics, hsdp}) {
    EXPECT_EQ(p.params, 4);
    EXPECT_EQ(p.grads, 4);
    EXPECT_EQ(p.optimizer, 4);
    EXPECT_TRUE(p.gathers_units());
    EXPECT_FALSE(p.gathers_at_step());
  }
  const SchemeRequest each_micro{.stage = 3, .mics_group = 4, .reduce_at = "micro_step"};
  EXPECT_EQ(make_policy(each_micro, 8).reduce_at, ReduceAt::kMicroStep);
}

/// The rules in the order a reader of the manual meets them.
bool legal(const SchemeRequest& r, int ranks) {
  const bool mics = r.mics_group != 0, hsdp = r.hsdp_group != 0, grouped = mics || hsdp;
  for (int size : {r.secondary, r.mics_group, r.hsdp_group}) {
    if (size < 0 || (size > 0 && ranks % size != 0)) return false;
  }
  if (mics && hsdp) return false;
  if ((grouped || r.secondary > 1) && r.stage != 3) return false;
  if (grouped && r.secondary > 1) return false;
  if (ranks > 1 && (r.mics_group == 1 || r.hsdp_group == 1)) return false;
  if (r.stage1_all_reduce && r.stage != 1) return false;
  if (r.reduce_at == "boundary") return r.stage <= 1;
  if (r.reduce_at == "two_hop") return mics;
  return r.reduce_at.empty() || r.reduce_at == "micro_step";
}

TEST(Policy, EveryCombinationIsAcceptedOrRefusedByTheRules) {
  int accepted = 0, refused = 0;
  for (int ranks : {1, 4, 6}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (bool all_reduce : {false, true}) {
        for (int secondary : {-1, 0, 1, 2, 3, 4, 6}) {
          for (int mics : {-1, 0, 1, 2, 4, 6}) {
            for (int hsdp : {-1, 0, 1, 2, 4, 6}) {
              for (const char* at : {"", "boundary", "micro_step", "two_hop", "never"}) {
                const SchemeRequest r{stage, all_reduce, secondary, mics, hsdp, at};
                const std::string error = error_of(r, ranks);
                ASSERT_EQ(error.empty(), legal(r, ranks))
                    << fmt::format("N {} stage {} ar {} sec {} mics {} hsdp {} at '{}': {}",
                                   ranks, stage, all_reduce, secondary, mics, hsdp, at, error);
                ++(error.empty() ? accepted : refused);
                if (!error.empty()) continue;
                const StagePolicy p = make_policy(r, ranks);
                EXPECT_EQ(ranks % p.params, 0);
                EXPECT_EQ(p.grads % p.params, 0);     // Gathers go from finer shards
                EXPECT_EQ(p.optimizer % p.grads, 0);  // to coarser ones.
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 1000);
}

void expect_error(const SchemeRequest& request, int ranks,
                  std::initializer_list<const char*> parts) {
  const std::string error = error_of(request, ranks);
  for (const char* part : parts) EXPECT_THAT(error, HasSubstr(part));
}

TEST(Policy, ErrorsNameKeyExpectationAndValue) {
  expect_error({.stage = 4}, 8, {"[stage]", "0, 1, 2 or 3", "found 4"});
  expect_error({.stage = 0}, 0, {"[ranks]", "at least 1"});
  expect_error({.stage = 3, .secondary = 3}, 8, {"[secondary]", "divisor of the 8", "found 3"});
  expect_error({.stage = 1, .secondary = 2}, 8,
               {"[secondary]", "stage 3", "groups of 2 at stage 1"});
  expect_error({.stage = 2, .reduce_at = "boundary"}, 8,
               {"[reduce_at]", "'micro_step'", "whole"});
  expect_error({.stage = 3, .mics_group = 2, .reduce_at = "boundary"}, 8, {"or 'two_hop'"});
  expect_error({.stage = 3, .hsdp_group = 2, .reduce_at = "two_hop"}, 8,
               {"[reduce_at]", "only MiCS"});
  expect_error({.stage = 0, .reduce_at = "later"}, 8, {"'two_hop'", "'later'"});
  expect_error({.stage = 2, .mics_group = 2}, 8, {"[mics_group]", "stage 3", "stage 2"});
  expect_error({.stage = 3, .mics_group = 2, .hsdp_group = 4}, 8, {"MiCS groups of 2", "of 4"});
  expect_error({.stage = 3, .secondary = 2, .hsdp_group = 4}, 8, {"[secondary]", "hsdp_group"});
  expect_error({.stage = 3, .hsdp_group = 1}, 8, {"[hsdp_group]", "stage 0"});
  expect_error({.stage = 3, .mics_group = -1}, 8, {"[mics_group]", "0 for off", "found -1"});
  expect_error({.stage = 2, .stage1_all_reduce = true}, 8, {"[stage1_all_reduce]", "stage 1"});
}

constexpr StateLayout kMixed{};  // bf16 parameters and gradients, fp32 master, m, v.

StateBytes of(const SchemeRequest& request, const StateLayout& layout, std::uint64_t numel,
              int ranks, int rank = 0) {
  return state_bytes(make_policy(request, ranks), layout, numel, ranks, rank);
}

/// Figure 1 of the ZeRO paper: 7.5 B parameters, 64 ranks, Adam.
TEST(StateBytes, ZeroPaperFigure) {
  const double expected[] = {120, 31.4, 16.6, 1.9};
  for (int stage = 0; stage <= 3; ++stage) {
    const auto total = of({.stage = stage}, kMixed, 7'500'000'000, 64).total();
    EXPECT_NEAR(static_cast<double>(total) / 1e9, expected[stage], 0.05) << stage;
  }
  EXPECT_EQ(of({.stage = 3}, kMixed, 7'500'000'000, 64).total(), 1'875'000'000u);
}

TEST(StateBytes, LayoutsPerElement) {
  struct Row {
    StateLayout layout;
    std::uint64_t params, grads, master, m, v;
  };
  const StateLayout twenty{.accum = Dtype::kF32};
  const StateLayout pure{.param = Dtype::kF32, .grad = Dtype::kF32, .accum = Dtype::kF32};
  const StateLayout sgd{.adam = false, .momentum = false};
  const StateLayout momentum{.adam = false, .momentum = true};
  for (const Row& row :
       {Row{kMixed, 2, 2, 4, 4, 4}, Row{twenty, 2, 6, 4, 4, 4}, Row{pure, 4, 4, 4, 4, 4},
        Row{sgd, 2, 2, 4, 0, 0}, Row{momentum, 2, 2, 4, 4, 0}}) {
    const StateBytes b = of({.stage = 0}, row.layout, 1000, 4);
    EXPECT_EQ(b.params, row.params * 1000);
    EXPECT_EQ(b.grads, row.grads * 1000);
    EXPECT_EQ(b.master, row.master * 1000);
    EXPECT_EQ(b.momentum, row.m * 1000);
    EXPECT_EQ(b.variance, row.v * 1000);
    EXPECT_EQ(b.secondary, 0u);
  }
  // The lecture's 20 bytes a parameter: the fp32 gradient is sharded as the gradient is.
  EXPECT_EQ(of({.stage = 2}, twenty, 1000, 4).grads, 6u * 250);
  EXPECT_EQ(of({.stage = 1}, twenty, 1000, 4).grads, 6u * 1000);
}

TEST(StateBytes, ChunksOfUnevenTensors) {
  // 10 elements on 4 ranks: chunks of 3, 3, 3, 1.
  const std::uint64_t chunk[] = {3, 3, 3, 1};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(of({.stage = 3}, kMixed, 10, 4, rank).params, 2 * chunk[rank]);
    const StateBytes hpz = of({.stage = 3, .secondary = 2}, kMixed, 10, 4, rank);
    EXPECT_EQ(hpz.secondary, 2 * (rank % 2 == 0 ? 6u : 4u));
    EXPECT_EQ(hpz.params, 2 * chunk[rank]);
  }
  // 2 elements on 4 ranks: the late chunks are empty.
  EXPECT_EQ(of({.stage = 3}, kMixed, 2, 4, 3).total(), 0u);
  EXPECT_EQ(of({.stage = 3, .mics_group = 2}, kMixed, 2, 4, 3).total(), 16u);
}

TEST(StateBytes, AddsUpFieldByField) {
  StateBytes sum{1, 2, 3, 4, 5, 6};
  sum += StateBytes{10, 20, 30, 40, 50, 60};
  EXPECT_EQ(sum.params, 11u);
  EXPECT_EQ(sum.grads, 22u);
  EXPECT_EQ(sum.master, 33u);
  EXPECT_EQ(sum.momentum, 44u);
  EXPECT_EQ(sum.variance, 55u);
  EXPECT_EQ(sum.secondary, 66u);
  EXPECT_EQ(sum.total(), 231u);
}

}  // namespace
}  // namespace zeropp::zero
