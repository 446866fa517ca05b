#include "tests/zero/engine_harness.h"

#include <gtest/gtest.h>

#include "quant/memory.h"
#include "quant/registry.h"
#include "tests/support/spawn.h"

namespace zeropp::test {

namespace {

void train(const Experiment& e, hierarchy::Transport& transport, RankResult& r) {
  hierarchy::Comm comm{.transport = transport, .memory = &r.memory};
  const auto model = e.model(transport.rank());
  EngineConfig config = e.config;
  config.policy = zero::make_policy(e.scheme, e.topology.ranks());
  Engine engine(comm, *model, r.memory, config, &toy_data());
  engine.keep_gradients(e.gradients);
  if (!e.adopt.empty()) engine.codec_state()->adopt(e.adopt, e.topology.ranks());
  for (int s = 0; s < e.steps; ++s) {
    hierarchy::Ledger start = transport.ledger();
    if (e.before_step) e.before_step(engine, s);
    r.before.add(transport.ledger().since(start));
    start = transport.ledger();
    r.steps.push_back(engine.train_step());
    r.by_step.push_back(transport.ledger().since(start));
    r.traffic.add(r.by_step.back());
    if (e.hashes) r.hashes.push_back(engine.state_sha256());
  }
  r.state = engine.gather_state();
  if (e.gradients) r.gradients = engine.gather_gradients();
  if (auto* state = engine.codec_state()) r.residuals = state->pieces();
  if (e.at_end) e.at_end(engine);
  r.routes = engine.routes();
  r.formula = engine.formula();
  r.applied = engine.applied_steps();
  r.skipped = engine.skipped_steps();
  r.deployed = engine.has_deployed_weights();
}

}  // namespace

Results run(const Experiment& e) {
  quant::Buffer::set_poison(true);  // What nobody wrote is NaN.
  // One object a rank from the start: the engine holds a reference to the memory ledger.
  Results results(static_cast<std::size_t>(e.topology.ranks()));
  spawn(e.topology, e.options, [&](hierarchy::Transport& transport) {
    RankResult& r = results[static_cast<std::size_t>(transport.rank())];
    train(e, transport, r);
    r.memory_left = r.memory.current_total();
  });
  return results;
}

SchemeRequest at_stage(int stage) {
  SchemeRequest request;
  request.stage = stage;
  return request;
}

SchemeRequest hpz(int group) {
  SchemeRequest request = at_stage(3);
  request.secondary = group;
  return request;
}

EngineConfig toy_config() {
  EngineConfig c;
  c.algorithm = hierarchy::Algorithm::kHierarchical;
  c.clip = 0;
  c.seq = 6;
  c.seed = 7;
  c.optimizer.lr = 0.05;
  c.check_replicas = false;
  return c;
}

void quantize_weights(EngineConfig& config, const std::string& spec) {
  config.weight_codec = quant::make_codec(spec);
}

void quantize_gradients(EngineConfig& config, int levels, const std::string& spec) {
  config.grad_codecs.clear();
  for (int i = 0; i < levels; ++i) config.grad_codecs.push_back(quant::make_codec(spec));
}

const zero::Dataset& toy_data() {
  static const zero::Dataset data = [] {
    zero::Dataset d;
    d.name = "toy";
    std::uint32_t x = 12345;
    for (int i = 0; i < 4000; ++i) {
      x = x * 1664525U + 1013904223U;
      d.bytes.push_back(static_cast<std::uint8_t>(x >> 24));
    }
    d.train_bytes = 3000;
    return d;
  }();
  return data;
}

std::uint64_t sent(const hierarchy::Ledger& ledger, const Filter& f) {
  std::uint64_t bytes = 0;
  for (const auto& entry : ledger.entries()) {
    const auto& call = entry.key.call;
    if (f.role && call.role != *f.role) continue;
    if (f.link && entry.key.link != *f.link) continue;
    if (f.phase && call.phase != *f.phase) continue;
    bytes += entry.sent.bytes.total();
  }
  return bytes;
}

std::uint64_t sent(const Results& results, const Filter& filter) {
  std::uint64_t bytes = 0;
  for (const auto& r : results) bytes += sent(r.traffic, filter);
  return bytes;
}

std::uint64_t sent_in_step(const Results& results, std::size_t step, const Filter& filter) {
  std::uint64_t bytes = 0;
  for (const auto& r : results) bytes += sent(r.by_step.at(step), filter);
  return bytes;
}

void expect_same(const Results& a, const Results& b) {
  ASSERT_EQ(a[0].steps.size(), b[0].steps.size());
  for (std::size_t s = 0; s < a[0].steps.size(); ++s) {
    for (const auto& rank : b) {
      EXPECT_EQ(a[0].steps[s].loss, rank.steps[s].loss) << "step " << s;
      EXPECT_EQ(a[0].steps[s].grad_norm, rank.steps[s].grad_norm) << "step " << s;
      EXPECT_EQ(a[0].steps[s].lr, rank.steps[s].lr) << "step " << s;
      EXPECT_EQ(a[0].steps[s].skipped, rank.steps[s].skipped) << "step " << s;
    }
  }
  EXPECT_EQ(a[0].hashes, b[0].hashes);
}

std::uint64_t elements(const zero::Model& model) {
  std::uint64_t n = 0;
  for (const auto& t : model.tensors()) n += t.numel;
  return n;
}

std::vector<NamedScheme> exact_schemes(int group, const std::string& reduce_at) {
  std::vector<NamedScheme> all{
      {"stage0", {.stage = 0}},
      {"stage1", {.stage = 1}},
      {"stage1_all_reduce", {.stage = 1, .stage1_all_reduce = true}},
      {"stage2", {.stage = 2}},
      {"stage3", {.stage = 3}},
      {"hpz", {.stage = 3, .secondary = group}},
  };
  for (auto& s : all) s.request.reduce_at = reduce_at;
  return all;
}

std::vector<NamedScheme> schemes(int group, const std::string& reduce_at) {
  auto all = exact_schemes(group, reduce_at);
  all.push_back({"hsdp", {.stage = 3, .hsdp_group = group, .reduce_at = reduce_at}});
  all.push_back({"mics", {.stage = 3, .mics_group = group, .reduce_at = reduce_at}});
  return all;
}

}  // namespace zeropp::test
