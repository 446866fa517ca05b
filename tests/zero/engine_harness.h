#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hierarchy/ledger.h"
#include "hierarchy/topology.h"
#include "hierarchy/transport/virtual.h"
#include "quant/codec.h"
#include "quant/codec_state.h"
#include "tests/support/toy_model.h"
#include "zero/engine.h"

// One engine per virtual rank, run to the end, and what each rank saw.
namespace zeropp::test {

using zero::Engine;
using zero::EngineConfig;
using zero::SchemeRequest;
using State = std::vector<std::vector<float>>;

struct Experiment {
  hierarchy::Topology topology = hierarchy::Topology::two_level(2, 2);
  SchemeRequest scheme = {};
  EngineConfig config;  ///< `policy` comes from the scheme.
  std::function<std::unique_ptr<zero::Model>(int rank)> model = [](int) { return tied_mlp(); };
  int steps = 2;
  bool hashes = true;      ///< state_sha256 after every step.
  bool gradients = false;  ///< gather_gradients after the last step.
  /// Called on every rank before a step's training; may evaluate or load weights.
  std::function<void(Engine&, int step)> before_step = {};
  /// Called on every rank after the last step.
  std::function<void(Engine&)> at_end = {};
  /// Residuals of another N that the run starts with.
  std::vector<quant::LogicalResidual> adopt = {};
  hierarchy::VirtualOptions options = {};
};

struct RankResult {
  std::vector<zero::StepResult> steps;
  std::vector<std::string> hashes;  ///< Rank 0 alone.
  State state, gradients;           ///< Rank 0 alone.
  std::vector<zero::Route> routes;
  zero::StateBytes formula;
  zero::MemoryLedger memory;               ///< After the last step.
  std::uint64_t memory_left = 0;           ///< When the engine has gone.
  hierarchy::Ledger traffic;               ///< Of train_step alone, all steps.
  std::vector<hierarchy::Ledger> by_step;  ///< The same, one a step.
  hierarchy::Ledger before;                ///< Of all the before_step calls.
  std::uint64_t applied = 0, skipped = 0;
  bool deployed = false;
  std::vector<quant::ResidualPiece> residuals;  ///< Of stateful codecs, after the last step.
};
using Results = std::vector<RankResult>;

Results run(const Experiment& e);

SchemeRequest at_stage(int stage);
SchemeRequest hpz(int group);

/// A config that moves weights visibly: AdamW, lr 0.05, clipping off, 6 tokens a sample.
EngineConfig toy_config();
/// int8:block=16 for weights / int4:block=16 a level for gradients.
void quantize_weights(EngineConfig& config, const std::string& spec = "int8:block=16");
void quantize_gradients(EngineConfig& config, int levels = 2,
                        const std::string& spec = "int4:block=16");
const zero::Dataset& toy_data();

/// What a filter leaves out counts.
struct Filter {
  std::optional<quant::Role> role = {};
  std::optional<int> link = {};
  std::optional<hierarchy::Phase> phase = {};
};
std::uint64_t sent(const hierarchy::Ledger& ledger, const Filter& filter);
/// Bytes sent while training, summed over ranks.
std::uint64_t sent(const Results& results, const Filter& filter);
std::uint64_t sent_in_step(const Results& results, std::size_t step, const Filter& filter);

/// Losses, norms and state hashes, step by step, to the bit.
void expect_same(const Results& a, const Results& b);

/// Elements over all tensors; a tied one counts once.
std::uint64_t elements(const zero::Model& model);

/// Every scheme that shards over these ranks, `node` of them a node: 0, 1 both ways, 2, 3, hpZ,
/// HSDP, MiCS; all with that reduce_at ("" leaves the default).
struct NamedScheme {
  std::string name;
  SchemeRequest request;
  friend std::ostream& operator<<(std::ostream& out, const NamedScheme& s) {
    return out << s.name;
  }
};
std::vector<NamedScheme> schemes(int group, const std::string& reduce_at = "");
/// Those that Law 1 makes equal with any algorithm: 0, 1 both ways, 2, 3 and hpZ.
std::vector<NamedScheme> exact_schemes(int group, const std::string& reduce_at = "micro_step");

}  // namespace zeropp::test
