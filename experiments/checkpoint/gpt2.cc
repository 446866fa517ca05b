#include "experiments/checkpoint/gpt2.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "experiments/json_io.h"
#include "experiments/safetensors/reader.h"
#include "experiments/safetensors/writer.h"
#include "quant/convert.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

constexpr std::string_view kPrefix = "transformer.";

std::string name_in_file(const std::string& name) {
  return name == "lm_head.weight" ? name : std::string(kPrefix) + name;
}

Json hugging_face_config(const zero::GptConfig& c) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", c.vocab},
          {"n_positions", c.context},
          {"n_embd", c.width},
          {"n_layer", c.layers},
          {"n_head", c.heads},
          {"n_inner", nullptr},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", c.layer_norm_eps},
          {"initializer_range", c.init_std},
          {"resid_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"tie_word_embeddings", c.tied},
          {"torch_dtype", "float32"}};
}

/// Buffers of old files, and the head that a tied model shares.
bool may_be_skipped(const std::string& name, bool tied) {
  return matches_glob("h.*.attn.bias", name) || matches_glob("h.*.attn.masked_bias", name) ||
         (tied && name == "lm_head.weight");
}

}  // namespace

void write_gpt2(const std::filesystem::path& dir, const zero::GptConfig& config,
                const std::vector<std::vector<float>>& states) {
  const auto model = zero::make_gpt(config);
  std::vector<TensorToWrite> tensors;
  for (std::size_t t = 0; t < states.size(); ++t) {
    const zero::TensorSpec& spec = model->tensors()[t];
    const std::span<const float> master(states[t].data(), spec.numel);
    tensors.push_back({.name = name_in_file(spec.name),
                       .dtype = "F32",
                       .shape = {spec.shape.begin(), spec.shape.end()},
                       .data = std::as_bytes(master)});
  }
  write_safetensors(dir / "model.safetensors", std::move(tensors), {{"format", "pt"}});
  write_atomic(dir / "config.json", to_text(hugging_face_config(config)) + "\n");
}

std::vector<std::vector<float>> read_gpt2(const std::filesystem::path& path,
                                          const zero::GptConfig& config) {
  const SafetensorsFile file(std::filesystem::is_directory(path) ? path / "model.safetensors"
                                                                 : path);
  const auto model = zero::make_gpt(config);
  std::set<std::string> wanted;
  for (const zero::TensorSpec& spec : model->tensors()) wanted.insert(spec.name);
  for (const SafeTensor& t : file.tensors()) {
    const std::string name =
        t.name.starts_with(kPrefix) ? t.name.substr(kPrefix.size()) : t.name;
    if (!wanted.contains(name) && !may_be_skipped(name, config.tied)) {
      throw UsageError("checkpoint " + path.string(),
                       fmt::format("tensors of a GPT-2 with {} layers and a {} head",
                                   config.layers, config.tied ? "tied" : "separate"),
                       "'" + t.name + "'");
    }
  }
  std::vector<std::vector<float>> weights;
  for (const zero::TensorSpec& spec : model->tensors()) {
    const SafeTensor* found = file.find(name_in_file(spec.name));
    if (found == nullptr) found = file.find(spec.name);
    if (found == nullptr) {
      throw UsageError("checkpoint " + path.string(), "the tensor '" + spec.name + "'",
                       "none of that name");
    }
    if (!std::equal(found->shape.begin(), found->shape.end(), spec.shape.begin(),
                    spec.shape.end())) {
      throw UsageError("checkpoint " + path.string(),
                       fmt::format("'{}' of shape [{}], as zeropp.model says", spec.name,
                                   fmt::join(spec.shape, ", ")),
                       fmt::format("[{}]", fmt::join(found->shape, ", ")));
    }
    const quant::Tensor x = file.read(*found);
    weights.emplace_back(spec.numel);
    quant::convert(x.view(), quant::mut_view(weights.back()));
  }
  return weights;
}

}  // namespace zeropp::experiments
