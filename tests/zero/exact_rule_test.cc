#include <gtest/gtest.h>

#include "zero/engine.h"

namespace zeropp::zero {
namespace {

TensorSpec tensor(std::string name, std::vector<std::size_t> shape) {
  TensorSpec spec{.name = std::move(name), .shape = std::move(shape), .numel = 1};
  for (std::size_t extent : spec.shape) spec.numel *= extent;
  return spec;
}

TEST(ExactRule, NormsAndBiasesByDefault) {
  const ExactRule rule;
  EXPECT_TRUE(rule.applies(tensor("ln_f.weight", {64})));
  EXPECT_TRUE(rule.applies(tensor("scalar", {})));
  EXPECT_FALSE(rule.applies(tensor("wte.weight", {256, 64})));
  EXPECT_FALSE(rule.applies(tensor("tiny", {1, 1})));
}

TEST(ExactRule, OneDimensionCanBeCoded) {
  ExactRule rule;
  rule.one_d = false;
  EXPECT_FALSE(rule.applies(tensor("ln_f.weight", {64})));
}

TEST(ExactRule, BelowIsExclusive) {
  ExactRule rule;
  rule.below = 100;
  EXPECT_TRUE(rule.applies(tensor("a", {9, 11})));
  EXPECT_FALSE(rule.applies(tensor("b", {10, 10})));
}

TEST(ExactRule, PatternsAreShellPatternsOnTheWholeName) {
  const ExactRule rule{.patterns = {"wte.*", "h.?.attn.*"}};
  EXPECT_TRUE(rule.applies(tensor("wte.weight", {256, 64})));
  EXPECT_TRUE(rule.applies(tensor("h.3.attn.c_proj.weight", {64, 64})));
  EXPECT_FALSE(rule.applies(tensor("h.13.attn.c_proj.weight", {64, 64})));
  EXPECT_FALSE(rule.applies(tensor("x.wte.weight", {256, 64})));
  EXPECT_FALSE(rule.applies(tensor("h.3.mlp.c_fc.weight", {64, 256})));
}

}  // namespace
}  // namespace zeropp::zero
