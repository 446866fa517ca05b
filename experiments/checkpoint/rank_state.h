#pragma once

#include <filesystem>

#include "zero/checkpoint.h"
#include "zero/model.h"

namespace zeropp::experiments {

/// The parts of a checkpoint that codecs keep, in `path` (.safetensors): reference weights
/// "copies.<tensor>", residuals "residual.<rank>.<i>" with their keys in the metadata,
/// PowerSGD's "powersgd.<rank>.error.<tensor>" and "powersgd.right.<tensor>". UsageError.
void write_rank_state(const std::filesystem::path& path, const zero::Model& model,
                      const zero::Checkpoint& checkpoint);
void read_rank_state(const std::filesystem::path& path, const zero::Model& model,
                     zero::Checkpoint& checkpoint);

}  // namespace zeropp::experiments
