#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zero/model.h"

namespace zeropp::zero {

/// Canonical ids of one block's tensors, in the order of Model::tensors().
struct GptBlockIds {
  explicit GptBlockIds(std::uint32_t first)
      : ln_1_weight(first),
        ln_1_bias(first + 1),
        attn_weight(first + 2),
        attn_bias(first + 3),
        attn_proj_weight(first + 4),
        attn_proj_bias(first + 5),
        ln_2_weight(first + 6),
        ln_2_bias(first + 7),
        fc_weight(first + 8),
        fc_bias(first + 9),
        mlp_proj_weight(first + 10),
        mlp_proj_bias(first + 11) {}
  static constexpr std::uint32_t kCount = 12;
  std::uint32_t ln_1_weight, ln_1_bias, attn_weight, attn_bias, attn_proj_weight,
      attn_proj_bias, ln_2_weight, ln_2_bias, fc_weight, fc_bias, mlp_proj_weight,
      mlp_proj_bias;
};

/// Canonical ids of a GPT: wte, wpe, the blocks, ln_f and, if untied, lm_head.
struct GptIds {
  explicit GptIds(const GptConfig& config)
      : layers(static_cast<std::uint32_t>(config.layers)),
        ln_f_weight(2 + GptBlockIds::kCount * layers),
        ln_f_bias(ln_f_weight + 1),
        head(config.tied ? wte : ln_f_bias + 1) {}
  GptBlockIds block(int layer) const {
    return GptBlockIds(2 + GptBlockIds::kCount * static_cast<std::uint32_t>(layer));
  }
  std::uint32_t layers;
  std::uint32_t wte = 0, wpe = 1;
  std::uint32_t ln_f_weight, ln_f_bias;
  std::uint32_t head;  ///< lm_head.weight, or wte if tied.
};

std::unique_ptr<ModelRun> make_gpt_run(const GptConfig& config, quant::MemoryTracker* memory);

}  // namespace zeropp::zero
