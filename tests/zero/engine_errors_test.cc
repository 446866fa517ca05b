// What the engine refuses, with the key and the value in the text; what it says of routes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "quant/error.h"
#include "quant/registry.h"
#include "tests/support/spawn.h"
#include "tests/zero/engine_harness.h"

namespace zeropp::test {
namespace {

using hierarchy::Algorithm;
using hierarchy::Topology;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(SchemeRequest scheme, const std::function<void(EngineConfig&)>& change,
                    Topology topology = Topology::two_level(2, 2)) {
  Experiment e{.topology = std::move(topology),
               .scheme = scheme,
               .config = toy_config(),
               .steps = 0,
               .hashes = false};
  change(e.config);
  return error_of<UsageError>([&] { run(e); });
}

SchemeRequest hsdp(int group) {
  SchemeRequest r = at_stage(3);
  r.hsdp_group = group;
  return r;
}
SchemeRequest mics(int group) {
  SchemeRequest r = at_stage(3);
  r.mics_group = group;
  return r;
}

TEST(Refused, ACodecThatNothingWouldUse) {
  const auto weights = [](EngineConfig& c) { quantize_weights(c); };
  EXPECT_THAT(refusal(at_stage(0), weights),
              AllOf(HasSubstr("codecs.weights"), HasSubstr("int8"), HasSubstr("stage 0")));
  // One rank gathers nothing and sends nothing.
  EXPECT_THAT(refusal(at_stage(3), weights, Topology::two_level(1, 1)),
              HasSubstr("codecs.weights"));
  EXPECT_THAT(refusal(
                  at_stage(3), [](EngineConfig& c) { quantize_gradients(c); },
                  Topology::two_level(1, 1)),
              HasSubstr("codecs.gradients"));
  // The exact rules leave no tensor for it.
  const auto all_exact = [](EngineConfig& c) {
    quantize_weights(c);
    c.exact_weights.below = 1000;
  };
  EXPECT_THAT(refusal(at_stage(3), all_exact),
              AllOf(HasSubstr("codecs.weights"), HasSubstr("exact rules")));
  const auto all_exact_gradients = [](EngineConfig& c) {
    quantize_gradients(c);
    c.exact_grads.patterns = {"*"};
  };
  EXPECT_THAT(refusal(at_stage(0), all_exact_gradients),
              AllOf(HasSubstr("codecs.gradients"), HasSubstr("exact rules")));
  // all_to_all is one hop: an inner codec of another kind would never run.
  const auto two_kinds = [](EngineConfig& c) {
    c.algorithm = Algorithm::kAllToAll;
    c.grad_codecs = {quant::make_codec("int8"), quant::make_codec("int4")};
  };
  EXPECT_THAT(refusal(at_stage(2), two_kinds),
              AllOf(HasSubstr("codecs.gradients"), HasSubstr("int8"), HasSubstr("int4")));
}

TEST(Refused, GradientCodecsThatDoNotFit) {
  for (const int count : {1, 3}) {
    EXPECT_THAT(refusal(at_stage(2), [&](EngineConfig& c) { quantize_gradients(c, count); }),
                AllOf(HasSubstr("codecs.gradients"), HasSubstr("2 levels"),
                      HasSubstr("found " + std::to_string(count))));
  }
  for (const int stage : {0, 1, 2, 3}) {
    const auto ring = [](EngineConfig& c) {
      c.algorithm = Algorithm::kRing;
      quantize_gradients(c);
    };
    EXPECT_THAT(refusal(at_stage(stage), ring),
                AllOf(HasSubstr("codecs.gradients"), HasSubstr("ring")));
  }
}

TEST(Refused, DifferencesWithoutAReference) {
  const auto delta = [](EngineConfig& c) { quantize_weights(c, "delta|int4"); };
  const auto weights = [&](SchemeRequest scheme, const char* says,
                           Topology t = Topology::two_level(2, 4)) {
    EXPECT_THAT(refusal(scheme, delta, std::move(t)),
                AllOf(HasSubstr("codecs.weights"), HasSubstr(says)));
  };
  weights(at_stage(0), "stage 0");
  weights(at_stage(3), "a secondary for 'delta' at stage 3");
  weights(hpz(2), "4 ranks");  // Inside a node, at no level.
  weights(hpz(8), "4 ranks");  // The world: nothing would be sent.
  weights(hpz(4), "none here", Topology::two_level(1, 4));
  weights(hsdp(4), "hsdp");
  weights(mics(4), "mics");
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kAllToAll}) {
    const auto flat = [&](EngineConfig& c) {
      delta(c);
      c.algorithm = algorithm;
    };
    EXPECT_THAT(refusal(hpz(4), flat, Topology::two_level(2, 4)),
                AllOf(HasSubstr("hierarchical"), HasSubstr(hierarchy::name(algorithm))));
  }
  const auto gradients = [](EngineConfig& c) { quantize_gradients(c, 2, "delta|int4"); };
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_THAT(refusal(at_stage(stage), gradients),
                AllOf(HasSubstr("codecs.gradients"), HasSubstr("ef21")));
  }
}

TEST(Refused, NumbersThatMakeNoSense) {
  const auto refused = [](const std::function<void(EngineConfig&)>& change) {
    return refusal(at_stage(2), change);
  };
  EXPECT_THAT(refused([](auto& c) { c.reduce_bucket = 0; }),
              AllOf(HasSubstr("bucket_size"), HasSubstr("found 0")));
  EXPECT_THAT(refused([](auto& c) { c.gather_bucket = 0; }),
              AllOf(HasSubstr("bucket_size"), HasSubstr("found 0")));
  EXPECT_THAT(refused([](auto& c) { c.gas = 0; }), HasSubstr("gradient_accumulation_steps"));
  EXPECT_THAT(refused([](auto& c) { c.micro_batch = 0; }), HasSubstr("micro_batch"));
  EXPECT_THAT(refused([](auto& c) { c.seq = 0; }), HasSubstr("seq"));
  EXPECT_THAT(refused([](auto& c) { c.predivide = -1; }),
              HasSubstr("gradient_predivide_factor"));
  const auto predivide = [](EngineConfig& c) { c.predivide = 2; };
  EXPECT_THAT(refusal(hsdp(2), predivide), HasSubstr("gradient_predivide_factor"));
  EXPECT_THAT(refusal(mics(2), predivide), HasSubstr("gradient_predivide_factor"));
}

TEST(Refused, SecondariesWithoutShardedParameters) {
  for (const int stage : {0, 1, 2}) {
    SchemeRequest r = hpz(2);
    r.stage = stage;
    EXPECT_THAT(refusal(r, [](EngineConfig&) {}), HasSubstr("secondary"));
  }
  EXPECT_THAT(refusal(hpz(3), [](EngineConfig&) {}), HasSubstr("3"));
  SchemeRequest both = hsdp(2);
  both.secondary = 2;
  EXPECT_THAT(refusal(both, [](EngineConfig&) {}), HasSubstr("secondary"));
}

TEST(Refused, CallsOutOfPlace) {
  const auto error = [](const std::function<void(Engine&)>& call) {
    Experiment e{.scheme = at_stage(3), .config = toy_config(), .steps = 1};
    e.at_end = call;
    return error_of<UsageError>([&] { run(e); });
  };
  EXPECT_THAT(error([](Engine& e) { e.gather_gradients(); }), HasSubstr("keep_gradients"));
  EXPECT_THAT(error([](Engine& e) { e.evaluate(0); }), HasSubstr("window"));
  EXPECT_THAT(error([](Engine& e) { e.load_masters({{1.0F}}); }),
              AllOf(HasSubstr("load_masters"), HasSubstr("tensors")));
  EXPECT_THAT(error([](Engine& e) {
                const auto model = tied_mlp();
                State state;
                for (const auto& t : model->tensors()) state.emplace_back(t.numel + 1);
                e.load_masters(state);
              }),
              AllOf(HasSubstr("load_masters"), HasSubstr("wte.weight"), HasSubstr("66")));
}

std::map<std::string, zero::Route> routes(SchemeRequest scheme,
                                          const std::function<void(EngineConfig&)>& change) {
  Experiment e{.scheme = scheme, .config = toy_config(), .steps = 0, .hashes = false};
  change(e.config);
  std::map<std::string, zero::Route> by_name;
  const Results results = run(e);
  for (const auto& route : results[0].routes) by_name[route.tensor] = route;
  EXPECT_EQ(by_name.size(), tied_mlp()->tensors().size());
  return by_name;
}

TEST(Routes, SayWhatEachTensorDoes) {
  const auto coded = [](EngineConfig& c) {
    quantize_weights(c, "int8:block=32");
    c.grad_codecs = {quant::make_codec("int8:block=64"), quant::make_codec("int4:block=16")};
  };
  auto r = routes(at_stage(3), coded);
  EXPECT_EQ(r["wte.weight"].weights, "int8:block=32");
  EXPECT_THAT(r["wte.weight"].gradients, ElementsAre("int8:block=64", "int4:block=16"));
  EXPECT_EQ(r["h.0.fc.bias"].weights, "exact");  // 1-D by default.
  EXPECT_THAT(r["h.0.fc.bias"].gradients, ElementsAre("exact"));

  r = routes(at_stage(1), [&](EngineConfig& c) {
    coded(c);
    c.exact_weights = {.one_d = false, .below = 5, .patterns = {"h.*.fc.weight"}};
    c.exact_grads = {.one_d = false, .below = 26, .patterns = {}};
  });
  EXPECT_EQ(r["h.0.fc.bias"].weights, "int8:block=32");             // 5 elements: not below 5.
  EXPECT_EQ(r["h.0.branch.scale"].weights, "exact");                // 1 element.
  EXPECT_EQ(r["h.1.fc.weight"].weights, "exact");                   // By its name.
  EXPECT_THAT(r["h.1.fc.weight"].gradients, ElementsAre("exact"));  // 25 elements.
  EXPECT_EQ(r["wte.weight"].weights, "int8:block=32");
  EXPECT_EQ(r["wte.weight"].gradients.size(), 2U);

  r = routes(at_stage(0), [](EngineConfig& c) { quantize_gradients(c); });
  EXPECT_EQ(r["wte.weight"].weights, "-");
  EXPECT_EQ(r["wte.weight"].gradients.size(), 2U);
  r = routes(at_stage(2), [](EngineConfig&) {});
  EXPECT_EQ(r["wte.weight"].weights, "exact");
  EXPECT_THAT(r["wte.weight"].gradients, ElementsAre("exact"));
}

// The table is what happens: exact tensors keep every bit beside coded ones.
TEST(Routes, AreWhatHappens) {
  const auto gradient = [](const GradPoint& p) {
    return 1.0F / static_cast<float>(1 + p.element + 10 * p.tensor);
  };
  Experiment e{.scheme = at_stage(2), .config = toy_config(), .steps = 1, .gradients = true};
  e.model = [&](int) {
    return constant_model(
        {.tensors = {toy_tensor("a.weight", {8, 8}), toy_tensor("b.weight", {8, 8}),
                     toy_tensor("a.bias", {8})},
         .gradient = gradient});
  };
  const State exact = run(e)[0].gradients;
  quantize_gradients(e.config);
  e.config.exact_grads.patterns = {"b.*"};
  const State coded = run(e)[0].gradients;
  EXPECT_NE(coded[0], exact[0]);
  EXPECT_EQ(coded[1], exact[1]);
  EXPECT_EQ(coded[2], exact[2]);
}

}  // namespace
}  // namespace zeropp::test
