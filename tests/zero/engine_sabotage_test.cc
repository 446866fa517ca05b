// The comparisons that `verify` makes must be able to fail: each deliberate fault shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/error.h"
#include "tests/support/spawn.h"
#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Algorithm;
using hierarchy::Topology;
using quant::Dtype;
using testing::HasSubstr;
using zero::Sabotage;

Experiment world(SchemeRequest scheme, Algorithm algorithm = Algorithm::kHierarchical) {
  Experiment e{.topology = Topology::two_level(2, 4),
               .scheme = scheme,
               .config = toy_config(),
               .steps = 4};
  e.config.algorithm = algorithm;
  return e;
}

/// Does the fault change the state at some step?
bool shows(Experiment e, Sabotage sabotage) {
  const Results honest = run(e);
  EXPECT_EQ(run(e)[0].hashes, honest[0].hashes);  // Nothing but the fault differs.
  e.config.sabotage = sabotage;
  return run(e)[0].hashes != honest[0].hashes;
}

TEST(Sabotage, StaleSecondary) {
  for (const std::uint64_t prefetch : {0, 1000000}) {
    for (const int group : {2, 4, 8}) {
      Experiment e = world(hpz(group));
      e.config.prefetch = prefetch;
      EXPECT_TRUE(shows(e, Sabotage::kStaleSecondary)) << group << " prefetch " << prefetch;
    }
  }
  EXPECT_FALSE(shows(world(at_stage(3)), Sabotage::kStaleSecondary));  // There is none.
}

TEST(Sabotage, SkipRounding) {
  for (const auto& scheme : schemes(4)) {
    for (const auto a : {Algorithm::kRing, Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      Experiment e = world(scheme.request, a);
      e.config.wire = Dtype::kBF16;
      EXPECT_TRUE(shows(e, Sabotage::kSkipRounding)) << scheme.name << hierarchy::name(a);
    }
  }
}

TEST(Sabotage, ReverseOrder) {
  for (const auto& scheme : schemes(4)) {
    for (const auto a : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      EXPECT_TRUE(shows(world(scheme.request, a), Sabotage::kReverseOrder))
          << scheme.name << hierarchy::name(a);
    }
  }
}

TEST(Sabotage, OwnUnrounded) {
  for (const auto& scheme : schemes(4)) {
    for (const auto a : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      Experiment e = world(scheme.request, a);
      e.config.wire = Dtype::kBF16;
      EXPECT_TRUE(shows(e, Sabotage::kOwnUnrounded)) << scheme.name << hierarchy::name(a);
      e.config.wire = Dtype::kF32;
      quantize_gradients(e.config);
      EXPECT_TRUE(shows(e, Sabotage::kOwnUnrounded)) << scheme.name << " coded";
    }
  }
}

TEST(Sabotage, DivergentReplica) {
  for (const auto& scheme : schemes(4)) {
    SCOPED_TRACE(scheme.name);
    Experiment e = world(scheme.request);
    e.config.check_replicas = true;
    run(e);
    e.config.sabotage = Sabotage::kDivergentReplica;
    const std::string text = error_of<TransportError>([&] { run(e); });
    EXPECT_THAT(text, HasSubstr("[replicas]"));
    EXPECT_THAT(text, HasSubstr("ranks 0 and 1"));
    EXPECT_THAT(text, HasSubstr("step 0"));
  }
}

// Checking must not change what is checked, nor the traffic that is reported.
TEST(CheckReplicas, ChangesNoBitAndNoByte) {
  for (const auto& scheme : schemes(4)) {
    SCOPED_TRACE(scheme.name);
    Experiment e = world(scheme.request);
    const Results off = run(e);
    e.config.check_replicas = true;
    const Results on = run(e);
    expect_same(off, on);
    for (const auto role :
         {quant::Role::kWeight, quant::Role::kGradient, quant::Role::kScalar}) {
      EXPECT_EQ(sent(off, {.role = role}), sent(on, {.role = role}));
    }
    EXPECT_GT(sent(on, {.role = quant::Role::kControl}), 0U);
    EXPECT_EQ(sent(off, {.role = quant::Role::kControl}), 0U);
  }
}

}  // namespace
}  // namespace zeropp::test
