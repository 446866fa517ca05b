// `zeropp verify` must hold on sound runs and must notice every law that is broken on purpose.
#include "experiments/verify/verify.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <tuple>

namespace zeropp::experiments::verify {
namespace {

/// The cell of that family and scheme on 2 x 4 ranks, accumulation 3, bf16.
Cell cell_of(const std::string& family, const std::string& name, int algorithm = 1) {
  Cell cell{.topology = 5,
            .gas = 1,
            .algorithm = algorithm,
            .precision = 1,
            .head = 0,
            .scheme = -1,
            .bucket = 1,
            .prefetch = 2,
            .workers = 1};
  for (std::size_t i = 0; i < schemes().size(); ++i) {
    if (schemes()[i].family == family && schemes()[i].name == name) {
      cell.scheme = static_cast<int>(i);
    }
  }
  EXPECT_GE(cell.scheme, 0) << family << " " << name;
  EXPECT_TRUE(valid(cell));
  return cell;
}

std::string difference(const Cell& cell, zero::Sabotage sabotage) {
  VerifyOptions options;
  options.sabotage = sabotage;
  return verify_cells({cell}, options, {}).at(0).difference;
}

TEST(Verify, EverySchemeOnTwoNodesOfFourEqualsItsReference) {
  std::vector<Cell> cells;
  for (const Scheme& s : schemes()) {
    cells.push_back(cell_of(s.family, s.name));
    for (const int resume : {1, 2}) {
      Cell resumed = cells.back();
      resumed.resume = resume;
      if (valid(resumed)) cells.push_back(resumed);
    }
  }
  for (const CellResult& r : verify_cells(cells, {}, {})) {
    EXPECT_EQ(r.difference, "") << label(r.cell);
  }
}

struct Broken {
  zero::Sabotage sabotage;
  const char *family, *scheme, *says;
  friend std::ostream& operator<<(std::ostream& os, const Broken& b) {
    return os << b.scheme << " sabotage " << static_cast<int>(b.sabotage);
  }
};

class VerifyNotices : public testing::TestWithParam<Broken> {};

TEST_P(VerifyNotices, AndNamesThePlace) {
  const Broken& b = GetParam();
  Cell cell = cell_of(b.family, b.scheme);
  // Sums of a few bf16 numbers are exact in fp32 and hide their order.
  if (b.sabotage == zero::Sabotage::kReverseOrder) cell.precision = 0;
  if (b.sabotage == zero::Sabotage::kLossyCheckpoint) cell.resume = 1;
  EXPECT_EQ(difference(cell, zero::Sabotage::kNone), "");
  const std::string found = difference(cell, b.sabotage);
  EXPECT_NE(found.find("step"), std::string::npos) << found;
  EXPECT_NE(found.find(b.says), std::string::npos) << found;
}

INSTANTIATE_TEST_SUITE_P(
    Laws, VerifyNotices,
    testing::Values(
        Broken{zero::Sabotage::kReverseOrder, "exact micro_step", "3", "tensor"},
        Broken{zero::Sabotage::kReverseOrder, "exact boundary", "1", "tensor"},
        Broken{zero::Sabotage::kStaleSecondary, "exact micro_step", "3+hpZ node", "tensor"},
        Broken{zero::Sabotage::kStaleSecondary, "delta", "3+hpZ node", "tensor"},
        Broken{zero::Sabotage::kDivergentReplica, "delta", "3+hpZ node", "ranks 0 and 1"},
        Broken{zero::Sabotage::kDivergentReplica, "delta", "2", "ranks 0 and 1"},
        Broken{zero::Sabotage::kLossyCheckpoint, "ef", "3", "tensor"},
        Broken{zero::Sabotage::kLossyCheckpoint, "ef21", "2", "loss"},
        Broken{zero::Sabotage::kLossyCheckpoint, "delta", "3+hpZ node", "loss"},
        Broken{zero::Sabotage::kOwnUnrounded, "zero++", "3", "tensor"},
        Broken{zero::Sabotage::kOwnUnrounded, "stochastic int4", "2", "element"},
        Broken{zero::Sabotage::kDivergentReplica, "exact micro_step", "3", "ranks 0 and 1"}));

TEST(Verify, NoticesASkippedRounding) {
  Cell cell = cell_of("exact micro_step", "3");
  cell.precision = 4;  // fp32 sent in bf16; a wire of the gradient's own dtype would hide it.
  const std::string found = difference(cell, zero::Sabotage::kSkipRounding);
  EXPECT_NE(found.find("tensor"), std::string::npos) << found;
}

TEST(Verify, PairwiseCellsCoverEveryPairThatCanOccur) {
  using Pair = std::tuple<int, int, int, int>;
  const auto add = [](std::set<Pair>& pairs, const Cell& c) {
    for (int i = 0; i < kFactors; ++i) {
      for (int j = i + 1; j < kFactors; ++j) pairs.emplace(i, factor(c, i), j, factor(c, j));
    }
  };
  std::set<Pair> covered, possible;
  for (const Cell& c : pairwise_cells()) {
    ASSERT_TRUE(valid(c)) << label(c);
    add(covered, c);
  }
  Cell c;
  const auto walk = [&](auto&& self, int i) -> void {
    if (i == kFactors) {
      if (valid(c)) add(possible, c);
      return;
    }
    for (int v = 0; v < factor_values(i); ++v) {
      factor(c, i) = v;
      self(self, i + 1);
    }
  };
  walk(walk, 0);
  EXPECT_EQ(covered, possible);
}

TEST(Verify, CommandFailsAndPrintsTheFirstDifference) {
  VerifyOptions options;
  options.filter = "exact micro_step: stage 3";
  std::ostringstream out, err;
  EXPECT_EQ(verify_command(options, out, err), 0) << out.str();
  options.sabotage = zero::Sabotage::kReverseOrder;
  EXPECT_EQ(verify_command(options, out, err), 1);
  EXPECT_NE(out.str().find("DIFFERS"), std::string::npos);
}

}  // namespace
}  // namespace zeropp::experiments::verify
