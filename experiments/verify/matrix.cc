#include "experiments/verify/matrix.h"

#include <fmt/format.h>

#include <array>

#include "experiments/codecs/catalog.h"
#include "experiments/plugins.h"
#include "quant/registry.h"
#include "zero/powersgd.h"

namespace zeropp::experiments::verify {

using hierarchy::Algorithm;
using hierarchy::Topology;
using quant::Dtype;

namespace {

constexpr std::array kGas{1, 3};
constexpr std::array kAlgorithms{Algorithm::kRing, Algorithm::kHierarchical,
                                 Algorithm::kAllToAll};
constexpr std::array kBuckets{"1", "7", "whole", "10x"};
constexpr std::array kPrefetch{"0", "some", "all"};
constexpr std::array kResume{"", ", resumed", ", resumed from the reference"};
constexpr int kNode = -1;  // A group of the ranks of one node.
constexpr auto kPowerSgd = "powersgd:rank=2";
constexpr auto kInt4 = "int4:block=32,rounding=stochastic";
constexpr auto kCorrelated = "int4:block=32,rounding=correlated";
constexpr auto kTopK = "ef|topk:k=4,chunk=16";
constexpr auto kDelta = "delta|int4:block=64";
constexpr auto kStochasticDelta = "delta|int4:block=64,rounding=stochastic";
constexpr auto kFeedback = "ef|int4:block=32";
constexpr auto kLoco = "loco(reset=2)|hadamard(16)|int4:block=32";
constexpr auto kEf21 = "hadamard(16)|ef21|int4:block=32";
constexpr auto kEden = "hadamard(32,random=yes)|eden|int4:block=32";

std::vector<Scheme> make_schemes() {
  const std::string micro = "exact micro_step", boundary = "exact boundary";
  const auto at = [](int stage, const char* reduce_at) {
    return zero::SchemeRequest{.stage = stage, .reduce_at = reduce_at};
  };
  auto all_reduce = at(1, "micro_step");
  all_reduce.stage1_all_reduce = true;
  auto all_reduce_boundary = at(1, "boundary");
  all_reduce_boundary.stage1_all_reduce = true;
  auto hpz = at(3, "");
  hpz.secondary = kNode;
  auto hpz_pair = at(3, "");
  hpz_pair.secondary = 2;
  auto hsdp = at(3, "");
  hsdp.hsdp_group = kNode;
  auto mics = at(3, "micro_step");
  mics.mics_group = kNode;
  auto two_hop = at(3, "two_hop");
  two_hop.mics_group = kNode;
  std::vector<Scheme> all = {
      {micro, "0", at(0, "micro_step"), "", "", false},
      {micro, "1", at(1, "micro_step"), "", "", false},
      {micro, "1 all-reduce", all_reduce, "", "", false},
      {micro, "2", at(2, ""), "", "", false},
      {micro, "3", at(3, ""), "", "", false},
      {micro, "3 lossless", at(3, ""), "lossless", "", false},
      {micro, "3+hpZ node", hpz, "", "", false},
      {micro, "3+hpZ 2", hpz_pair, "", "", false},
      {micro, "HSDP", hsdp, "", "", true},
      {micro, "MiCS micro_step", mics, "", "", true},
      {boundary, "0", at(0, "boundary"), "", "", false},
      {boundary, "1", at(1, "boundary"), "", "", false},
      {boundary, "1 all-reduce", all_reduce_boundary, "", "", false},
      {"mics two_hop", "MiCS", two_hop, "", "", true},
      {"qwz", "1", at(1, "micro_step"), "int8:block=64", "", false},
      {"qwz", "2", at(2, ""), "int8:block=64", "", false},
      {"qwz", "3", at(3, ""), "int8:block=64", "", false},
      {"qwz", "3+hpZ node", hpz, "int8:block=64", "", false},
      {"zero++", "3", at(3, ""), "int8:block=64", "int4:block=32", false},
      {"zero++", "3+hpZ node", hpz, "int8:block=64", "int4:block=32", false},
      {"zero++", "2", at(2, ""), "int8:block=64", "int4:block=32", false},
      {"delta", "1", at(1, "micro_step"), kDelta, "", false},
      {"delta", "1 all-reduce", all_reduce, kDelta, "", false},
      {"delta", "2", at(2, ""), kDelta, "", false},
      {"delta", "3+hpZ node", hpz, kDelta, "", true},
      {"delta zero++", "2", at(2, ""), kStochasticDelta, "int4:block=32", false},
      {"delta zero++", "3+hpZ node", hpz, kStochasticDelta, "int4:block=32", true},
      {"stochastic int4", "3", at(3, ""), "", kInt4, false},
      {"stochastic int4", "2", at(2, ""), "", kInt4, false},
      {"stochastic int4", "0", at(0, "micro_step"), "", kInt4, false},
      {"correlated int4", "3", at(3, ""), "", kCorrelated, false},
      {"correlated int4", "2", at(2, ""), "", kCorrelated, false},
      {"ef topk", "3", at(3, ""), "", kTopK, false},
      {"ef topk", "2", at(2, ""), "", kTopK, false},
      {"ef", "3", at(3, ""), "", kFeedback, false},
      {"ef", "2", at(2, ""), "", kFeedback, false},
      {"ef", "0", at(0, "micro_step"), "", kFeedback, false},
      {"ef", "3+hpZ node", hpz, "", kFeedback, false},
      {"ef boundary", "0", at(0, "boundary"), "", kFeedback, false},
      {"ef boundary", "1", at(1, "boundary"), "", kFeedback, false},
      {"loco", "3", at(3, ""), "", kLoco, false},
      {"loco", "2", at(2, ""), "", kLoco, false},
      {"loco MiCS", "MiCS", two_hop, "", kLoco, true},
      {"ef21", "1", at(1, "micro_step"), "ef21|int8:block=64", kEf21, false},
      {"ef21", "2", at(2, ""), "ef21|int8:block=64", kEf21, false},
      {"eden", "3", at(3, ""), "", kEden, false},
      {"eden", "0", at(0, "micro_step"), "", kEden, false},
      {"powersgd micro_step", "0", at(0, "micro_step"), "", kPowerSgd, false},
      {"powersgd micro_step", "1 all-reduce", all_reduce, "", kPowerSgd, false},
      {"powersgd micro_step", "2", at(2, ""), "", kPowerSgd, false},
      {"powersgd micro_step", "3+hpZ node", hpz, "", kPowerSgd, false},
      {"powersgd micro_step", "HSDP", hsdp, "", kPowerSgd, true},
      {"powersgd micro_step", "MiCS", mics, "", kPowerSgd, true},
      {"powersgd boundary", "0", at(0, "boundary"), "", kPowerSgd, false},
      {"powersgd boundary", "1", at(1, "boundary"), "", kPowerSgd, false},
  };
  for (const Plugin& plugin : plugins()) {
    for (const std::string& spec : example_specs(plugin.codecs)) {
      all.push_back({"plug-in " + spec, "3", at(3, ""), spec, spec, false});
      all.push_back({"plug-in " + spec, "2", at(2, ""), spec, spec, false});
    }
  }
  return all;
}

int node_size(const Cell& cell) {
  return topologies()[static_cast<std::size_t>(cell.topology)].group_size(0);
}

const Scheme& scheme_of(const Cell& cell) {
  return schemes()[static_cast<std::size_t>(cell.scheme)];
}

}  // namespace

const std::vector<Scheme>& schemes() {
  static const std::vector<Scheme> all = make_schemes();
  return all;
}

const std::vector<Topology>& topologies() {
  static const std::vector<Topology> all{Topology::two_level(1, 1),
                                         Topology::two_level(1, 2),
                                         Topology::two_level(3, 1),
                                         Topology::two_level(2, 2),
                                         Topology::two_level(3, 2),
                                         Topology::two_level(2, 4),
                                         Topology({{.name = "pair", .fan_out = 2},
                                                   {.name = "node", .fan_out = 2},
                                                   {.name = "net", .fan_out = 2}})};
  return all;
}

const std::vector<Precision>& precisions() {
  static const std::vector<Precision> all{
      {"fp32", Dtype::kF32, Dtype::kF32, Dtype::kF32},
      {"bf16", Dtype::kBF16, Dtype::kBF16, Dtype::kBF16},
      {"bf16 accumulated and sent in fp32", Dtype::kBF16, Dtype::kF32, Dtype::kF32},
      {"fp16", Dtype::kF16, Dtype::kF16, Dtype::kF16},
      {"fp32 sent in bf16", Dtype::kF32, Dtype::kF32, Dtype::kBF16}};
  return all;
}

int& factor(Cell& c, int i) {
  const std::array<int*, kFactors> fields{&c.topology, &c.gas,    &c.algorithm, &c.precision,
                                          &c.head,     &c.scheme, &c.bucket,    &c.prefetch,
                                          &c.workers,  &c.resume};
  return *fields.at(static_cast<std::size_t>(i));
}
int factor(const Cell& cell, int i) {
  Cell copy = cell;
  return factor(copy, i);
}
int factor_values(int i) {
  const std::array sizes{topologies().size(), kGas.size(),      kAlgorithms.size(),
                         precisions().size(), std::size_t{2},   schemes().size(),
                         kBuckets.size(),     kPrefetch.size(), std::size_t{2},
                         kResume.size()};
  return static_cast<int>(sizes.at(static_cast<std::size_t>(i)));
}

int gas_of(const Cell& cell) { return kGas.at(static_cast<std::size_t>(cell.gas)); }
Algorithm algorithm_of(const Cell& cell) {
  return kAlgorithms.at(static_cast<std::size_t>(cell.algorithm));
}
bool tied_of(const Cell& cell) { return cell.head == 0; }
int workers_of(const Cell& cell) { return cell.workers + 1; }
Resume resume_of(const Cell& cell) { return static_cast<Resume>(cell.resume); }

namespace {

bool is_stateful(const std::string& spec) {
  return !spec.empty() && (zero::powersgd_rank(spec) > 0 ||
                           quant::make_codec(spec, Dtype::kF32)->traits().stateful);
}

/// Residuals, or PowerSGD's errors.
bool keeps_state_by_rank(const Cell& cell) {
  static const std::vector<bool> known = [] {
    std::vector<bool> list;
    for (const Scheme& s : schemes()) {
      list.push_back(is_stateful(s.weights) || is_stateful(s.gradients));
    }
    return list;
  }();
  return known[static_cast<std::size_t>(cell.scheme)];
}

}  // namespace

bool valid(const Cell& cell) {
  const Scheme& s = scheme_of(cell);
  const Topology& t = topologies()[static_cast<std::size_t>(cell.topology)];
  if (t.ranks() == 1 && !(s.weights.empty() && s.gradients.empty())) return false;
  if (!s.gradients.empty() && zero::powersgd_rank(s.gradients) == 0 &&
      algorithm_of(cell) == Algorithm::kRing) {
    return false;
  }
  if (s.hierarchical_only && algorithm_of(cell) != Algorithm::kHierarchical) return false;
  const bool grouped =
      s.request.secondary != 0 || s.request.hsdp_group != 0 || s.request.mics_group != 0;
  if (grouped && node_size(cell) < 2) return false;
  if (s.request.secondary == 2 && t.ranks() % 2 != 0) return false;
  // Differences cross nodes: one node has nothing to send them to.
  const bool renews = s.request.secondary != 0 && s.weights.rfind("delta", 0) == 0;
  if (renews && node_size(cell) == t.ranks()) return false;
  // Residuals fit other stages by a rule, not to the bit.
  if (resume_of(cell) == Resume::kReference && keeps_state_by_rank(cell)) return false;
  return workers_of(cell) <= t.ranks();
}

Cell reference_of(Cell cell) {
  const std::string& family = scheme_of(cell).family;
  cell.scheme = 0;
  while (schemes()[static_cast<std::size_t>(cell.scheme)].family != family) ++cell.scheme;
  cell.bucket = 2;
  cell.prefetch = 0;
  cell.workers = 0;
  cell.resume = 0;
  return cell;
}

std::string label(const Cell& cell) {
  const Topology& t = topologies()[static_cast<std::size_t>(cell.topology)];
  std::string levels;
  for (int i = t.levels() - 1; i >= 0; --i) {
    levels += fmt::format("{}{}", levels.empty() ? "" : "x", t.level(i).fan_out);
  }
  return fmt::format(
      "{}: stage {}, ranks {}, accumulation {}, {}, {}, {} head, bucket {}, prefetch {}, "
      "workers {}{}",
      scheme_of(cell).family, scheme_of(cell).name, levels, gas_of(cell),
      hierarchy::name(algorithm_of(cell)),
      precisions()[static_cast<std::size_t>(cell.precision)].name,
      tied_of(cell) ? "tied" : "untied", kBuckets.at(static_cast<std::size_t>(cell.bucket)),
      kPrefetch.at(static_cast<std::size_t>(cell.prefetch)), workers_of(cell),
      kResume.at(static_cast<std::size_t>(cell.resume)));
}

zero::GptConfig model_of(const Cell& cell) {
  return {.layers = 2,
          .width = 12,
          .heads = 2,
          .vocab = 256,
          .context = 7,
          .tied = tied_of(cell),
          .layer_norm_eps = 1e-5,
          .init_std = 0.02,
          .dtype = precisions()[static_cast<std::size_t>(cell.precision)].dtype};
}

zero::EngineConfig engine_of(const Cell& cell, std::uint64_t parameters) {
  const Scheme& s = scheme_of(cell);
  const Topology& t = topologies()[static_cast<std::size_t>(cell.topology)];
  const Precision& p = precisions()[static_cast<std::size_t>(cell.precision)];
  zero::SchemeRequest request = s.request;
  for (int* group : {&request.secondary, &request.hsdp_group, &request.mics_group}) {
    if (*group == kNode) *group = node_size(cell);
  }
  zero::EngineConfig c;
  c.policy = zero::make_policy(request, t.ranks());
  c.grad_accum = p.accum;
  c.wire = p.wire;
  c.algorithm = algorithm_of(cell);
  if (!s.weights.empty()) c.weight_codec = quant::make_codec(s.weights, p.dtype);
  c.powersgd_rank = zero::powersgd_rank(s.gradients);
  const bool coded = !s.gradients.empty() && c.powersgd_rank == 0;
  for (int i = 0; coded && i < t.levels(); ++i) {
    c.grad_codecs.push_back(quant::make_codec(s.gradients, p.wire));
  }
  const std::array<std::uint64_t, 4> buckets{1, 7, parameters, 10 * parameters};
  const std::array<std::uint64_t, 3> prefetch{0, parameters / 3, 10 * parameters};
  c.reduce_bucket = c.gather_bucket = buckets.at(static_cast<std::size_t>(cell.bucket));
  c.prefetch = prefetch.at(static_cast<std::size_t>(cell.prefetch));
  c.gas = gas_of(cell);
  c.seq = 7;
  c.seed = 11;
  c.optimizer = {.kind = zero::OptimizerKind::kAdamW, .lr = 3e-3, .weight_decay = 0.1};
  c.loss_scale = {.enabled = p.dtype == Dtype::kF16, .initial_scale_power = 12};
  c.check_replicas = true;
  return c;
}

}  // namespace zeropp::experiments::verify
