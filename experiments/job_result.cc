#include "experiments/job_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "experiments/clusters.h"
#include "experiments/program_info.h"
#include "experiments/time_model.h"
#include "experiments/traffic_report.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

constexpr int kSchema = 1;  // Of result.json.

std::string losses_sha256(const JobOutcome& outcome) {
  zero::Sha256 sha;
  for (const StepRecord& step : outcome.steps) {
    const double loss = step.result.loss;  // The machines this runs on are little-endian.
    sha.update(&loss, sizeof loss);
  }
  return sha.hex();
}

Json memory_json(const JobOutcome& outcome) {
  std::uint64_t states = 0, formula = 0, peak = 0;
  zero::MemoryLedger::ByKind kinds{};
  for (const RankMemory& m : outcome.memory) {
    states = std::max(states, m.model_states);
    formula = std::max(formula, m.formula.total());
    peak = std::max(peak, m.peak);
    for (std::size_t k = 0; k < kinds.size(); ++k) kinds[k] = std::max(kinds[k], m.by_kind[k]);
  }
  Json by_kind = Json::object();
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    by_kind[std::string(quant::name(static_cast<quant::MemoryKind>(k)))] = kinds[k];
  }
  return {{"model_state_bytes", states},
          {"formula_bytes", formula},
          {"peak_bytes", peak},
          {"peak_by_kind", by_kind}};
}

/// Worker-seconds a rank and step: total = workers x wall / ranks.
Json time_json(const RunConfig& run, const JobOutcome& outcome) {
  const double share = 1.0 / (run.topology.ranks() * static_cast<double>(outcome.steps.size()));
  const double total = outcome.workers * outcome.wall_seconds * share;
  const double math = outcome.math_seconds * share;
  const double codec = outcome.codec_seconds * share;
  return {{"total", total},
          {"math", math},
          {"communication", std::max(0.0, total - math - codec)},
          {"codec", codec}};
}

/// Modelled seconds of a step on a real cluster. Its arithmetic is that of the cluster's ranks
/// at 40 % of their 16-bit peak where that is known, else what was measured here.
Json time_model_json(const RunConfig& run, const VariantConfig& variant,
                     const JobOutcome& outcome) {
  const auto links = cluster_links(run.topology, run.preset);
  if (!links) {
    return {{"total", nullptr}, {"exposed_communication", nullptr}, {"cluster", ""}};
  }
  const auto steps = static_cast<double>(outcome.steps.size());
  const zero::EngineConfig& e = variant.engine;
  double peak = 0;
  for (const ClusterPreset& preset : cluster_presets()) {
    if (preset.name == run.preset) peak = preset.peak_16bit_tflops;
  }
  double math = outcome.math_seconds / (steps * run.topology.ranks());
  if (peak > 0) {
    const double tokens = 1.0 * e.gas * e.micro_batch * e.seq;
    const double flops = 6.0 * static_cast<double>(variant.model.parameters()) * tokens;
    math = flops / (0.4 * peak * 1e12);
  }
  const TimeModel model =
      model_step_time(run.topology, *links,
                      {.ranks = outcome.ledgers,
                       .steps = steps,
                       .collectives_per_step = static_cast<double>(outcome.collectives) / steps,
                       .math_seconds = math});
  return {{"total", model.total},
          {"exposed_communication", model.exposed_communication},
          {"math", math},
          {"math_source", peak > 0 ? "6 x parameters x tokens at 40 % of the 16-bit peak"
                                   : "measured on this machine"},
          {"cluster", model.cluster},
          {"modelled", true}};
}

Json routes_json(const JobOutcome& outcome) {
  Json list = Json::array();
  for (const zero::Route& route : outcome.routes) {
    list.push_back(
        {{"tensor", route.tensor}, {"weights", route.weights}, {"gradients", route.gradients}});
  }
  return list;
}

/// What was done otherwise than a reader of the config might think.
Json fallbacks_json(const RunConfig& run, const VariantConfig& variant,
                    const JobOutcome& outcome) {
  Json list = Json::array();
  const zero::EngineConfig& e = variant.engine;
  for (const std::string& note : outcome.load_notes) {
    list.push_back("checkpoint.load: " + note);
  }
  if (outcome.unreferenced_gathers > 0) {
    list.push_back(
        fmt::format("codecs.weights: {} gathers of a tensor were exact, for want of "
                    "a reference",
                    outcome.unreferenced_gathers));
  }
  const int node = run.topology.group_size(0);
  const auto straddles = [&](const char* what, int group) {
    if (group > 1 && group < run.topology.ranks() && node % group != 0 && group % node != 0) {
      list.push_back(
          fmt::format("{}: groups of {} ranks straddle nodes of {}", what, group, node));
    }
  };
  straddles("secondary", e.policy.secondary);
  if (!e.policy.scheme.empty()) {
    straddles(e.policy.scheme.data(), e.policy.params);
    if (e.algorithm != hierarchy::Algorithm::kHierarchical &&
        e.policy.params < run.topology.ranks()) {
      list.push_back(fmt::format("{}: gradients cross its groups hierarchically, not by {}",
                                 e.policy.scheme, hierarchy::name(e.algorithm)));
    }
  }
  return list;
}

}  // namespace

Json job_result(const RunConfig& run, const VariantConfig& variant, std::uint64_t seed,
                const zero::Dataset& data, const JobOutcome& outcome) {
  const auto model = zero::make_gpt(variant.model);
  const StepRecord& last = outcome.steps.back();
  const std::uint64_t steps = outcome.steps.size();
  Json error = {{"nmse", 0.0}, {"cosine", 1.0}};
  if (outcome.gradient_error.n > 0) {
    const quant::ErrorMetrics m = outcome.gradient_error.metrics();
    error = {{"nmse", m.nmse}, {"cosine", m.cosine}, {"bias", m.bias}, {"elements", m.n}};
  } else if (variant.engine.compresses_gradients()) {
    error = {{"nmse", nullptr}, {"cosine", nullptr}};  // Coded, not measured.
  }
  return {{"schema", kSchema},
          {"program", program_identity()},
          {"hash", variant.hash},
          {"dataset_sha256", data.sha256},
          {"seed", seed},
          {"status", "ok"},
          {"steps", last.step},
          {"final_train_loss", last.result.loss},
          {"final_val_loss", outcome.val_loss},
          {"final_val_loss_deployed", outcome.val_loss_deployed},
          {"state_sha256", outcome.state_sha256},
          {"losses_sha256", losses_sha256(outcome)},
          {"skipped_steps", last.skipped_steps},
          {"underflow", outcome.underflow},
          {"traffic_per_step", traffic_per_step(run, variant, *model, outcome)},
          {"sent_per_rank", sent_per_rank(run, *model, outcome)},
          {"volume", volume(run, variant, *model, outcome)},
          {"memory_per_rank", memory_json(outcome)},
          {"collectives_per_step", per_step(outcome.collectives, steps)},
          {"gradient_error", error},
          {"time_per_step_s", time_json(run, outcome)},
          {"time_model_s", time_model_json(run, variant, outcome)},
          {"routes", routes_json(outcome)},
          {"fallbacks", fallbacks_json(run, variant, outcome)}};
}

void check_job_result(const Json& result, const hierarchy::Topology& topology) {
  if (result.at("schema") != kSchema) {
    throw UsageError("result.json", fmt::format("schema {}", kSchema),
                     result.at("schema").dump());
  }
  const auto numbers = [](const Json& object, std::initializer_list<const char*> keys) {
    for (const char* key : keys) to_double(object.at(key));
  };
  const auto number_or_null = [](const Json& value) {
    if (!value.is_null()) to_double(value);
  };
  numbers(result, {"seed", "steps", "final_train_loss", "final_val_loss",
                   "final_val_loss_deployed", "skipped_steps", "underflow"});
  for (const char* key : {"state_sha256", "losses_sha256"}) {
    (void)result.at(key).get<std::string>();
  }
  for (int i = 0; i < topology.levels(); ++i) {
    numbers(result.at("traffic_per_step").at(topology.level(i).name),
            {"bytes_sum", "messages", "bytes_out_max_node", "predicted_bytes_sum"});
  }
  number_or_null(result.at("sent_per_rank").at("psi"));
  if (const Json& volume = result.at("volume"); !volume.is_null()) {
    numbers(volume, {"coded", "exact_tensors", "scales", "padding", "scalars", "total"});
    number_or_null(volume.at("coded_over_own_share"));
  }
  const Json& memory = result.at("memory_per_rank");
  numbers(memory, {"model_state_bytes", "formula_bytes", "peak_bytes"});
  for (const auto& [kind, bytes] : memory.at("peak_by_kind").items()) to_double(bytes);
  number_or_null(result.at("collectives_per_step"));
  for (const char* key : {"nmse", "cosine"}) {
    number_or_null(result.at("gradient_error").at(key));
  }
  numbers(result.at("time_per_step_s"), {"total", "math", "communication", "codec"});
  for (const char* key : {"total", "exposed_communication"}) {
    number_or_null(result.at("time_model_s").at(key));
  }
  for (const char* key : {"routes", "fallbacks"}) {
    (void)result.at(key).get_ref<const Json::array_t&>();
  }
}

std::string metrics_line(const StepRecord& record) {
  Json line = {{"step", record.step},
               {"tokens", record.tokens},
               {"train/loss", record.result.loss},
               {"grad_norm", record.result.grad_norm},
               {"lr", record.result.lr},
               {"loss_scale", record.result.loss_scale},
               {"skipped_steps", record.skipped_steps},
               {"nonfinite", record.result.skipped ? 1 : 0},
               {"time_s", record.seconds}};
  if (record.val_loss) line["val/loss"] = *record.val_loss;
  return to_text(line, -1) + "\n";
}

StepRecord parse_metrics_line(std::string_view line, const std::string& source) {
  const Json j = parse_json(line, source);
  StepRecord record;
  j.at("step").get_to(record.step);
  j.at("tokens").get_to(record.tokens);
  record.result.loss = to_double(j.at("train/loss"));
  record.result.grad_norm = to_double(j.at("grad_norm"));
  record.result.lr = to_double(j.at("lr"));
  record.result.loss_scale = to_double(j.at("loss_scale"));
  record.result.skipped = j.at("nonfinite") == 1;
  j.at("skipped_steps").get_to(record.skipped_steps);
  record.seconds = to_double(j.at("time_s"));
  if (const auto val = j.find("val/loss"); val != j.end()) record.val_loss = to_double(*val);
  return record;
}

std::string traffic_lines(const RunConfig& run, const JobOutcome& outcome) {
  std::string text;
  for (std::size_t rank = 0; rank < outcome.ledgers.size(); ++rank) {
    for (const auto& [key, sent, received] : outcome.ledgers[rank].entries()) {
      const Json line = {{"rank", rank},
                         {"link", run.topology.level(key.link).name},
                         {"collective", hierarchy::name(key.call.collective)},
                         {"algorithm", hierarchy::name(key.call.algorithm)},
                         {"phase", hierarchy::name(key.call.phase)},
                         {"role", quant::name(key.call.role)},
                         {"hop", key.call.hop},
                         {"messages", sent.messages},
                         {"payload", sent.bytes.payload},
                         {"scale", sent.bytes.scale},
                         {"padding", sent.bytes.padding},
                         {"exact", sent.bytes.exact},
                         {"received_messages", received.messages},
                         {"received_bytes", received.bytes.total()}};
      text += to_text(line, -1) + "\n";
    }
  }
  return text;
}

}  // namespace zeropp::experiments
