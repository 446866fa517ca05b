#include "hierarchy/topology.h"

#include <gtest/gtest.h>

#include <vector>

#include "quant/error.h"
#include "tests/support/spawn.h"

namespace zeropp::hierarchy {
namespace {

Topology three_levels() {
  return Topology({{.name = "package", .fan_out = 2},
                   {.name = "node", .fan_out = 3},
                   {.name = "net", .fan_out = 4}});
}

TEST(Topology, PrefixSizesMultiplyFanOuts) {
  const Topology t = three_levels();
  EXPECT_EQ(t.ranks(), 24);
  EXPECT_EQ(t.levels(), 3);
  EXPECT_EQ(t.prefix_sizes(), (std::vector<int>{1, 2, 6, 24}));
  EXPECT_EQ(t.group_size(-1), 1);
  EXPECT_EQ(t.group_size(1), 6);
  EXPECT_EQ(t.level(1).name, "node");
}

TEST(Topology, LinkClassIsTheOutermostDigitThatDiffers) {
  const Topology t = three_levels();
  for (int a = 0; a < t.ranks(); ++a) {
    for (int b = 0; b < t.ranks(); ++b) {
      const int digit_a[] = {a % 2, a / 2 % 3, a / 6};
      const int digit_b[] = {b % 2, b / 2 % 3, b / 6};
      int expected = -1;
      for (int i = 0; i < 3; ++i) {
        if (digit_a[i] != digit_b[i]) expected = i;
      }
      EXPECT_EQ(t.link_class(a, b), expected) << a << " " << b;
    }
  }
}

TEST(Topology, TwoLevelsAreNodeAndNet) {
  const Topology t = Topology::two_level(2, 4);
  EXPECT_EQ(t.ranks(), 8);
  EXPECT_EQ(t.level(0).name, "node");
  EXPECT_EQ(t.level(0).fan_out, 4);
  EXPECT_EQ(t.link_class(3, 0), 0);
  EXPECT_EQ(t.link_class(3, 4), 1);
  EXPECT_EQ(t.level_named("net"), 1);
}

TEST(Topology, LevelsOfOneMemberAddNoLink) {
  const Topology t = Topology::two_level(4, 1);
  for (int r = 1; r < 4; ++r) EXPECT_EQ(t.link_class(0, r), 1);
  EXPECT_EQ(Topology::two_level(1, 1).ranks(), 1);
}

TEST(Topology, RefusesWhatIsNoTopology) {
  EXPECT_THROW(Topology({}), UsageError);
  EXPECT_THROW(Topology::two_level(0, 4), UsageError);
  EXPECT_THROW(Topology::two_level(2, -1), UsageError);
  EXPECT_THROW(Topology({{.name = "a", .fan_out = 2}, {.name = "a", .fan_out = 2}}),
               UsageError);
  EXPECT_NO_THROW(Topology::two_level(128, 128));
  EXPECT_THROW(Topology::two_level(129, 128), UsageError);
  EXPECT_THROW(Topology::two_level(1 << 30, 1 << 30), UsageError);  // No overflow on the way.
}

TEST(Topology, UnknownLevelNamesTheKnown) {
  const std::string text =
      test::error_of<UsageError>([] { return three_levels().level_named("rack"); });
  EXPECT_EQ(text, "[topology] expected one of the levels package, node, net, found 'rack'");
}

}  // namespace
}  // namespace zeropp::hierarchy
