#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "zero/checkpoint.h"
#include "zero/model.h"

namespace zeropp::experiments {

/// A checkpoint on disk is a folder:
///   model.safetensors, config.json  the masters as a Hugging Face GPT-2 (gpt2.h)
///   optimizer.safetensors           "m.<tensor>", "v.<tensor>", fp32
///   codec_state.safetensors         what codecs keep (rank_state.h)
///   zeropp_state.json               counts, loss scale, data position, codecs
/// It is written under a temporary name and renamed when all of it is on the disk: a folder of
/// its name is whole. `more` writes other files beside them first. UsageError where it cannot
/// be written; then the temporary folder is gone.
void write_checkpoint(const std::filesystem::path& dir, const zero::GptConfig& config,
                      const zero::Checkpoint& checkpoint,
                      const std::function<void(const std::filesystem::path& temporary)>& more);

/// UsageError names the file and what is wrong with it.
zero::Checkpoint read_checkpoint(const std::filesystem::path& dir,
                                 const zero::GptConfig& config);

/// A whole checkpoint, or where `path` is a .safetensors file, or a folder without
/// zeropp_state.json, or `weights_only`: the weights alone, at step 0.
zero::Checkpoint load_checkpoint(const std::filesystem::path& path,
                                 const zero::GptConfig& config, bool weights_only);

/// SHA-256 over the files that load_checkpoint would read.
std::string checkpoint_sha256(const std::filesystem::path& path);

}  // namespace zeropp::experiments
