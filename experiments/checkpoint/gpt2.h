#pragma once

#include <filesystem>
#include <vector>

#include "zero/checkpoint.h"
#include "zero/model.h"

namespace zeropp::experiments {

/// model.safetensors and config.json in `dir`, as GPT2LMHeadModel.save_pretrained leaves them:
/// "transformer." before Hugging Face's names, matrices of linear layers [in, out] (Conv1D),
/// fp32 masters, no lm_head where it is tied. UsageError where it cannot be written.
void write_gpt2(const std::filesystem::path& dir, const zero::GptConfig& config,
                const std::vector<std::vector<float>>& states);

/// Weights of such a file (or of the model.safetensors in a folder), whole tensors in canonical
/// order, F32, F16 or BF16. Names may lack "transformer."; masks of old files (attn.bias) and
/// a tied lm_head are skipped. UsageError: tensors that are missing, unknown or of another
/// shape, both shapes named.
std::vector<std::vector<float>> read_gpt2(const std::filesystem::path& path,
                                          const zero::GptConfig& config);

}  // namespace zeropp::experiments
