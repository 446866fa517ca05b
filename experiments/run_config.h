#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/json_io.h"
#include "experiments/verdict/verdict.h"
#include "hierarchy/topology.h"
#include "zero/engine.h"
#include "zero/model.h"

namespace zeropp::experiments {

/// One variant, ready to run: what its keys mean on this topology.
struct VariantConfig {
  std::string name;
  bool baseline = false;
  std::string compared_with;  ///< The baseline of this variant, by name.
  std::string axes;           ///< JSON: what a sweep set here; "{}" without one.
  zero::GptConfig model;
  zero::EngineConfig engine;  ///< The job sets the seed.
  std::uint64_t steps = 0;
  std::uint64_t eval_every = 0;  ///< Steps; 0 = only at the end.
  std::uint64_t eval_windows = 0;
  std::uint64_t checkpoint_every = 0;  ///< Steps; 0 = none.
  std::uint64_t checkpoint_keep = 0;   ///< The newest so many; 0 = all.
  std::string load;                    ///< Checkpoint to begin from; "" = none.
  std::string load_sha256;
  bool load_weights_only = false;
  bool tensorboard = false;                  ///< Write event files.
  std::string tensorboard_dir;               ///< Their root; "" = each in its job's folder.
  std::string weight_codec;                  ///< Canonical spec, or "exact".
  std::vector<std::string> gradient_codecs;  ///< One a level, innermost first.
  std::string secondary;  ///< "none", a level's name, or a size where no level has it.
  std::vector<std::string> ignored_keys;
  std::string
      resolved;      ///< JSON: a config that runs this variant alone, every default written.
  std::string hash;  ///< SHA-256 of what decides the results, seed apart.

  zero::StateLayout layout() const;
};

/// A config file with all its variants.
struct RunConfig {
  std::string stem;  ///< File name without extension.
  hierarchy::Topology topology = hierarchy::Topology::two_level(1, 1);
  std::string preset;  ///< Named cluster of the time model, may be empty.
  std::string data;
  double validation_fraction = 0;
  std::vector<std::uint64_t> seeds;
  std::string transport;      ///< "virtual" or "mpi".
  std::string cluster_check;  ///< "contained", "exact" or "off"; of mpi alone.
  int workers = 0;
  double timeout_s = 0;
  Declaration declared;  ///< Of verdicts.
  /// At least one. Exactly one is the baseline; in a sweep several may be.
  std::vector<VariantConfig> variants;
  std::string hash;  ///< Over variants and seeds; names the default folder.
};

/// Reads, checks and resolves. Overrides ("key=value") come before variants. UsageError names
/// the key, the value and what is allowed; the variant too where one is at fault.
RunConfig load_run_config(const std::string& path,
                          const std::vector<std::string>& overrides = {});
RunConfig parse_run_config(std::string_view text, const std::string& source,
                           const std::vector<std::string>& overrides = {});

/// The config.json of one job: the resolved variant with that seed alone.
std::string job_config(const VariantConfig& variant, std::uint64_t seed);

}  // namespace zeropp::experiments
