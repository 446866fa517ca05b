#include "experiments/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/checkpoint/files.h"
#include "experiments/text_table.h"
#include "quant/error.h"
#include "quant/registry.h"
#include "zero/powersgd.h"

namespace zeropp::experiments {
namespace {

using quant::Dtype;

constexpr const char* kQwz = "int8:block=2048";  // What zero_quantized_weights means here.
constexpr const char* kQgz = "int4:block=128";   // What zero_quantized_gradients means here.

[[noreturn]] void refuse(const std::string& expected, const std::string& found) {
  throw UsageError("config", expected, found);
}

int small_int(const ConfigView& c, std::string_view path) {
  const std::int64_t x = c.get_int(path);
  if (x > std::numeric_limits<int>::max()) {
    refuse(fmt::format("{} below 2^31", path), std::to_string(x));
  }
  return static_cast<int>(x);
}

/// Batch sizes: train = micro x accumulation x ranks; two give the third, one alone implies no
/// accumulation, as in DeepSpeed.
struct BatchSizes {
  std::int64_t train = 0, micro = 0, gas = 0;
};

BatchSizes resolve_batch(const ConfigView& c, std::int64_t ranks) {
  const auto read = [&](const char* path) { return c.has(path) ? c.get_int(path) : 0; };
  BatchSizes b{.train = read("train_batch_size"),
               .micro = read("train_micro_batch_size_per_gpu"),
               .gas = read("gradient_accumulation_steps")};
  const BatchSizes given = b;
  if (b.train == 0 && b.micro == 0) {
    refuse("train_batch_size or train_micro_batch_size_per_gpu to be given", "neither");
  }
  if (b.train != 0 && b.micro == 0 && b.gas == 0) b.gas = 1;
  if (b.micro != 0 && b.train == 0 && b.gas == 0) b.gas = 1;
  if (b.micro == 0) b.micro = b.train / (b.gas * ranks);
  if (b.gas == 0) b.gas = b.train / (b.micro * ranks);
  if (b.train == 0) b.train = b.micro * b.gas * ranks;
  if (b.micro == 0 || b.gas == 0 || b.train != b.micro * b.gas * ranks) {
    const auto text = [](std::int64_t x) { return x == 0 ? "unset" : std::to_string(x); };
    refuse(fmt::format("train_batch_size = train_micro_batch_size_per_gpu x "
                       "gradient_accumulation_steps x {} ranks",
                       ranks),
           fmt::format("{}, {} and {}", text(given.train), text(given.micro), text(given.gas)));
  }
  if (b.micro > 1 << 20 || b.gas > 1 << 20) {
    refuse("train_micro_batch_size_per_gpu and gradient_accumulation_steps up to 2^20",
           fmt::format("{} and {}", b.micro, b.gas));
  }
  return b;
}

void resolve_precision(const ConfigView& c, VariantConfig& v) {
  const bool fp16 = c.get_bool("fp16.enabled");
  const bool bf16 = c.get_bool("bf16.enabled");
  if (fp16 && bf16) refuse("one of fp16.enabled and bf16.enabled to be true", "both");
  v.model.dtype = fp16 ? Dtype::kF16 : bf16 ? Dtype::kBF16 : Dtype::kF32;
  const auto dtype_at = [&](const char* path) {
    return c.has(path) ? quant::parse_dtype(c.get_string(path)) : v.model.dtype;
  };
  v.engine.wire = dtype_at("communication_data_type");
  v.engine.grad_accum = dtype_at("data_types.grad_accum_dtype");
  zero::LossScaleConfig& scale = v.engine.loss_scale;
  scale.enabled = fp16;
  scale.loss_scale = c.get_double("fp16.loss_scale");
  scale.initial_scale_power = small_int(c, "fp16.initial_scale_power");
  scale.loss_scale_window = small_int(c, "fp16.loss_scale_window");
  scale.hysteresis = small_int(c, "fp16.hysteresis");
  scale.consecutive_hysteresis = c.get_bool("fp16.consecutive_hysteresis");
  scale.min_loss_scale = c.get_double("fp16.min_loss_scale");
}

void resolve_optimizer(const ConfigView& c, zero::EngineConfig& engine) {
  zero::OptimizerConfig& o = engine.optimizer;
  o.kind = zero::parse_optimizer(c.get_string("optimizer.type"),
                                 c.get_bool("optimizer.params.adam_w_mode"));
  o.lr = c.get_double("optimizer.params.lr");
  const Json betas = c.get("optimizer.params.betas");
  const auto good = [](const Json& b) {
    return b.is_number() && b.get<double>() >= 0 && b.get<double>() < 1;
  };
  if (betas.size() != 2 || !good(betas[0]) || !good(betas[1])) {
    refuse("optimizer.params.betas to be two numbers in [0, 1)", to_text(betas, -1));
  }
  o.beta1 = betas[0].get<double>();
  o.beta2 = betas[1].get<double>();
  o.eps = c.get_double("optimizer.params.eps");
  o.weight_decay = c.get_double("optimizer.params.weight_decay");
  o.momentum = c.get_double("optimizer.params.momentum");
  o.bias_correction = c.get_bool("optimizer.params.bias_correction");
  o.decay_1d = c.get_bool("zeropp.decay_1d");
  if (o.kind != zero::OptimizerKind::kSgd && o.momentum != 0) {
    refuse("optimizer.params.momentum only with type SGD", fmt::format("{}", o.momentum));
  }
}

void resolve_schedule(const ConfigView& c, VariantConfig& v) {
  if (!c.has("scheduler.type")) {
    if (c.has("scheduler.params")) refuse("scheduler.type beside scheduler.params", "none");
    return;
  }
  zero::ScheduleConfig& s = v.engine.schedule;
  s.type = c.get_string("scheduler.type");
  s.warmup_min_lr = c.get_double("scheduler.params.warmup_min_lr");
  s.warmup_max_lr = c.get_double("scheduler.params.warmup_max_lr");
  s.warmup_num_steps =
      static_cast<std::uint64_t>(c.get_int("scheduler.params.warmup_num_steps"));
  s.warmup_log = c.get_string("scheduler.params.warmup_type") == "log";
  s.total_num_steps =
      c.has("scheduler.params.total_num_steps")
          ? static_cast<std::uint64_t>(c.get_int("scheduler.params.total_num_steps"))
          : v.steps;
  s.warmup_min_ratio = c.get_double("scheduler.params.warmup_min_ratio");
  s.cos_min_ratio = c.get_double("scheduler.params.cos_min_ratio");
}

/// A group given by a level's name or a size in ranks; 0 = off.
int resolve_group(const ConfigView& c, std::string_view path, const hierarchy::Topology& t) {
  const Json* value = c.find(path);
  if (value == nullptr || *value == "none") return 0;
  if (value->is_string()) {
    for (int i = 0; i < t.levels(); ++i) {
      if (t.level(i).name == *value) return t.group_size(i);
    }
    std::vector<std::string> names;
    for (int i = 0; i < t.levels(); ++i) names.push_back(t.level(i).name);
    refuse(fmt::format("{} to be none or one of the levels {}", path, fmt::join(names, ", ")),
           to_text(*value, -1));
  }
  const std::int64_t size = as_integer(*value);
  if (size < 0 || size > t.ranks() || (size > 0 && t.ranks() % size != 0)) {
    refuse(fmt::format("{} to divide the {} ranks", path, t.ranks()), std::to_string(size));
  }
  return static_cast<int>(size);
}

/// hpZ: the level's name and DeepSpeed's size are two spellings of one thing.
int resolve_secondary(const ConfigView& c, const hierarchy::Topology& t) {
  constexpr const char* size_key = "zero_optimization.zero_hpz_partition_size";
  const int by_size = std::max(1, resolve_group(c, size_key, t));
  if (!c.has("zeropp.secondary")) return by_size > 1 ? by_size : 0;
  const int by_name = resolve_group(c, "zeropp.secondary", t);
  if (by_name == 1) {
    refuse("zeropp.secondary to name a level of more than one rank",
           fmt::format("{} of 1 rank", to_text(c.get("zeropp.secondary"), -1)));
  }
  if (c.has(size_key) && std::max(1, by_name) != by_size) {
    refuse(fmt::format("zeropp.secondary and {} to agree", size_key),
           fmt::format("{} ({} ranks) and {}", c.get_string("zeropp.secondary"), by_name,
                       by_size));
  }
  return by_name;
}

void resolve_policy(const ConfigView& c, const hierarchy::Topology& t, VariantConfig& v) {
  zero::SchemeRequest request;
  request.stage = small_int(c, "zero_optimization.stage");
  const bool reduce_scatter = c.get_bool("zero_optimization.reduce_scatter");
  if (!reduce_scatter && request.stage >= 2) {
    refuse(
        "zero_optimization.reduce_scatter to be true at stages 2 and 3 (gradients are sharded)",
        "false");
  }
  request.stage1_all_reduce =
      c.get_bool("zeropp.stage1_all_reduce") || (request.stage == 1 && !reduce_scatter);
  request.secondary = resolve_secondary(c, t);
  if (c.get_int("zero_optimization.mics_shard_size") > 0) {
    request.mics_group = resolve_group(c, "zero_optimization.mics_shard_size", t);
  }
  request.hsdp_group = resolve_group(c, "zeropp.hsdp_group", t);
  if (c.has("zeropp.reduce_at")) request.reduce_at = c.get_string("zeropp.reduce_at");
  v.engine.policy = zero::make_policy(request, t.ranks());
  v.secondary = request.secondary == 0 ? "none" : std::to_string(request.secondary);
  for (int i = t.levels() - 1; i >= 0; --i) {
    if (request.secondary > 1 && t.group_size(i) == request.secondary) {
      v.secondary = t.level(i).name;
    }
  }
}

/// One spec for all levels, or one a level. Empty = exact.
std::vector<std::string> spec_list(const ConfigView& c, const char* path, int levels) {
  const Json* value = c.find(path);
  if (value == nullptr || *value == "none" || *value == "exact") return {};
  if (value->is_string()) {
    return std::vector<std::string>(static_cast<std::size_t>(levels),
                                    value->get<std::string>());
  }
  if (value->size() != static_cast<std::size_t>(levels)) {
    refuse(fmt::format("{} to be one spec, or a list of {} (one a level)", path, levels),
           to_text(*value, -1));
  }
  std::vector<std::string> specs;
  bool any = false;
  for (const Json& item : *value) {
    if (!item.is_string()) refuse(fmt::format("{} to hold specs", path), to_text(*value, -1));
    const bool exact = item == "none" || item == "exact";
    any = any || !exact;
    specs.push_back(exact ? "identity" : item.get<std::string>());
  }
  return any ? specs : std::vector<std::string>{};
}

/// make_codec, naming the key.
quant::CodecPtr codec_at(const char* path, const std::string& spec, Dtype wire) {
  try {
    return quant::make_codec(spec, wire);
  } catch (const UsageError& e) {
    rethrow_in(path, e.what());
  }
}

/// PowerSGD takes the place of all levels' codecs. False: the specs are codecs.
bool resolve_powersgd(const char* path, const std::vector<std::string>& specs,
                      VariantConfig& v) {
  try {
    v.engine.powersgd_rank = zero::powersgd_rank(specs);
  } catch (const UsageError& e) {
    rethrow_in(path, e.what());
  }
  if (v.engine.powersgd_rank == 0) return false;
  v.gradient_codecs.assign(specs.size(), zero::powersgd_spec(v.engine.powersgd_rank));
  return true;
}

void resolve_codecs(const ConfigView& c, const hierarchy::Topology& t, VariantConfig& v) {
  constexpr const char* weights_key = "zeropp.codecs.weights";
  constexpr const char* grads_key = "zeropp.codecs.gradients";
  const auto specs = [&](const char* path, const char* flag, const char* implied) {
    const bool asked = c.get_bool(flag);
    auto list = spec_list(c, path, t.levels());
    if (asked && c.has(path) && list.empty()) {
      refuse(fmt::format("{} to name a codec where {} is true", path, flag), "none");
    }
    if (asked && list.empty()) list.assign(static_cast<std::size_t>(t.levels()), implied);
    return list;
  };
  const auto weights = specs(weights_key, "zero_optimization.zero_quantized_weights", kQwz);
  if (!weights.empty() && std::set(weights.begin(), weights.end()).size() != 1) {
    refuse(fmt::format("{} to be one spec: weights are encoded once and forwarded as bytes",
                       weights_key),
           fmt::format("{}", fmt::join(weights, ", ")));
  }
  v.weight_codec = "exact";
  if (!weights.empty()) {
    v.engine.weight_codec = codec_at(weights_key, weights[0], v.engine.wire);
    v.weight_codec = v.engine.weight_codec->spec();
  }
  const auto gradients = specs(grads_key, "zero_optimization.zero_quantized_gradients", kQgz);
  if (resolve_powersgd(grads_key, gradients, v)) return;
  for (const std::string& spec : gradients) {
    v.engine.grad_codecs.push_back(codec_at(grads_key, spec, v.engine.wire));
    v.gradient_codecs.push_back(v.engine.grad_codecs.back()->spec());
  }
  if (v.gradient_codecs.empty()) {
    v.gradient_codecs.assign(static_cast<std::size_t>(t.levels()), "exact");
  }
}

void check_together(const VariantConfig& v, const hierarchy::Topology& topology) {
  const int ranks = topology.ranks();
  const zero::StagePolicy& policy = v.engine.policy;
  if (v.engine.weight_codec && !policy.gathers_units() && !policy.gathers_at_step()) {
    refuse("a stage that gathers weights (1, 2, 3) on several ranks for a codec of weights",
           fmt::format("{} at stage {}", v.weight_codec, policy.stage));
  }
  if (v.engine.weight_codec && v.engine.weight_codec->traits().stateful &&
      policy.gathers_units()) {
    refuse(
        "zeropp.codecs.weights without state at stage 3, where units gather their weights "
        "several times a version (ef, loco and ef21 work at stages 1 and 2)",
        fmt::format("'{}'", v.weight_codec));
  }
  if (v.engine.compresses_gradients() && ranks == 1) {
    refuse("zeropp.codecs.gradients only on several ranks", "1 rank");
  }
  if (v.engine.powersgd_rank > 0 && policy.reduce_at == zero::ReduceAt::kTwoHop) {
    refuse("zeropp.reduce_at = micro_step for powersgd, which needs whole local gradients",
           "two_hop");
  }
  if (v.engine.predivide != 0 && !policy.scheme.empty()) {
    refuse(fmt::format("gradient_predivide_factor unset with {}", policy.scheme),
           fmt::format("{}", v.engine.predivide));
  }
  if (!v.engine.grad_codecs.empty() && v.engine.algorithm == hierarchy::Algorithm::kRing) {
    refuse("zeropp.algorithm = hierarchical or all_to_all for a codec of gradients",
           fmt::format("ring with {}", fmt::join(v.gradient_codecs, ", ")));
  }
}

void resolve_exact(const ConfigView& c, const std::string& path, zero::ExactRule& rule) {
  rule.one_d = c.get_bool(path + ".one_d");
  rule.below = static_cast<std::size_t>(c.get_int(path + ".below"));
  for (const Json& item : c.get(path + ".patterns")) {
    if (!item.is_string()) refuse(path + ".patterns to hold strings", to_text(item, -1));
    rule.patterns.push_back(item.get<std::string>());
  }
}

void resolve_model(const ConfigView& c, zero::GptConfig& m) {
  m.layers = small_int(c, "zeropp.model.layers");
  m.width = small_int(c, "zeropp.model.width");
  m.heads = small_int(c, "zeropp.model.heads");
  m.vocab = small_int(c, "zeropp.model.vocab");
  m.context = small_int(c, "zeropp.model.context");
  m.tied = c.get_bool("zeropp.model.tied");
  m.layer_norm_eps = c.get_double("zeropp.model.layer_norm_eps");
  m.init_std = c.get_double("zeropp.model.init_std");
  constexpr int kMostLayers = 5000;  // Keys of random numbers hold 2^16 tensors.
  if (m.layers > kMostLayers) {
    refuse(fmt::format("zeropp.model.layers up to {}", kMostLayers), std::to_string(m.layers));
  }
  if (m.width % m.heads != 0) {
    refuse("zeropp.model.width to be a multiple of zeropp.model.heads",
           fmt::format("{} and {}", m.width, m.heads));
  }
}

void resolve_engine(const ConfigView& c, VariantConfig& v) {
  zero::EngineConfig& e = v.engine;
  const auto elems = [&](const char* path) {
    return static_cast<std::uint64_t>(c.get_int(path));
  };
  e.reduce_bucket = elems("zero_optimization.reduce_bucket_size");
  e.gather_bucket = elems("zero_optimization.allgather_bucket_size");
  e.prefetch = elems("zero_optimization.stage3_prefetch_bucket_size");
  e.clip = c.get_double("gradient_clipping");
  if (c.has("gradient_predivide_factor")) {
    if (c.get_bool("prescale_gradients")) {
      refuse("gradient_predivide_factor without prescale_gradients, which means N",
             fmt::format("both"));
    }
    e.predivide = c.get_double("gradient_predivide_factor");
  }
  const bool renews_secondary =
      e.policy.gathers_units() && e.weight_codec && e.weight_codec->traits().difference;
  e.algorithm =
      c.has("zeropp.algorithm") ? hierarchy::parse_algorithm(c.get_string("zeropp.algorithm"))
      : e.compresses_gradients() || renews_secondary ? hierarchy::Algorithm::kHierarchical
                                                     : hierarchy::Algorithm::kRing;
  e.max_consecutive_skips = small_int(c, "zeropp.max_consecutive_skips");
  e.measure_gradient_error = c.get_bool("zeropp.measure.gradient_error");
  e.check_replicas = c.get_bool("zeropp.measure.replicas");
  resolve_exact(c, "zeropp.exact.weights", e.exact_weights);
  resolve_exact(c, "zeropp.exact.gradients", e.exact_grads);
}

}  // namespace

void check_name(const std::string& name, const std::string& where) {
  const bool good =
      !name.empty() && name.size() <= 80 && name[0] != '.' && name[0] != '-' &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || std::string_view("+-_.=,").find(c) != std::string::npos;
      });
  if (!good) {
    refuse(where + ".name to be letters, digits and + - _ . = , (first not - or .)",
           "'" + printable(name) + "'");
  }
  if (name == "summary.json" || name == "summary.md") {
    refuse(where + ".name not to be a file of the run", "'" + name + "'");
  }
}

namespace {

void resolve_checkpoint(const ConfigView& c, VariantConfig& v) {
  v.checkpoint_every = static_cast<std::uint64_t>(c.get_int("zeropp.checkpoint.every"));
  v.checkpoint_keep = static_cast<std::uint64_t>(c.get_int("zeropp.checkpoint.keep"));
  v.load_weights_only = c.get_bool("zeropp.checkpoint.load_weights_only");
  if (!c.has("zeropp.checkpoint.load")) return;
  v.load = c.get_string("zeropp.checkpoint.load");
  std::error_code ec;
  if (!std::filesystem::exists(v.load, ec)) {
    refuse("zeropp.checkpoint.load to be a checkpoint's folder or a .safetensors file",
           "'" + v.load + "', which is not there");
  }
  v.load_sha256 = checkpoint_sha256(v.load);
  const std::string wanted = c.has("zeropp.checkpoint.load_sha256")
                                 ? c.get_string("zeropp.checkpoint.load_sha256")
                                 : v.load_sha256;
  if (wanted != v.load_sha256) {
    refuse("zeropp.checkpoint.load to hold what load_sha256 says, " + wanted, v.load_sha256);
  }
}

}  // namespace

VariantConfig resolve_variant(const Json& config, const hierarchy::Topology& topology) {
  const ConfigView c(config);
  VariantConfig v;
  resolve_model(c, v.model);
  resolve_precision(c, v);
  v.steps = static_cast<std::uint64_t>(c.get_int("zeropp.steps"));
  v.eval_every = static_cast<std::uint64_t>(c.get_int("zeropp.eval.every"));
  v.eval_windows = static_cast<std::uint64_t>(c.get_int("zeropp.eval.windows"));
  resolve_checkpoint(c, v);
  resolve_tensorboard(c, v);
  const BatchSizes batch = resolve_batch(c, topology.ranks());
  v.engine.micro_batch = static_cast<int>(batch.micro);
  v.engine.gas = static_cast<int>(batch.gas);
  v.engine.seq = c.has("zeropp.seq") ? small_int(c, "zeropp.seq") : v.model.context;
  if (v.engine.seq > v.model.context) {
    refuse(fmt::format("zeropp.seq up to zeropp.model.context = {}", v.model.context),
           std::to_string(v.engine.seq));
  }
  resolve_optimizer(c, v.engine);
  resolve_schedule(c, v);
  resolve_policy(c, topology, v);
  resolve_codecs(c, topology, v);
  resolve_engine(c, v);
  check_together(v, topology);
  zero::check_config(v.engine, topology, zero::make_gpt(v.model)->tensors());
  v.resolved = resolved_json(config, v, topology);
  return v;
}

}  // namespace zeropp::experiments
