#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hierarchy/collectives.h"
#include "quant/convert.h"
#include "quant/memory.h"
#include "quant/registry.h"
#include "tests/support/spawn.h"

/// Inputs and a gather-then-compute oracle for the collectives, written from the contract in
/// hierarchy/collectives.h alone: plain loops over ranks and elements, no messages.
namespace zeropp::test {

using hierarchy::Algorithm;
using hierarchy::CallOptions;
using hierarchy::Comm;
using hierarchy::Topology;
using quant::Dtype;

/// Elements of one dtype.
struct Array {
  Dtype dtype = Dtype::kF32;
  std::vector<std::byte> bytes;

  Array() = default;
  /// Filled with NaN, so that an element nobody writes is noticed.
  Array(Dtype d, std::size_t n) : dtype(d), bytes(n * size_of(d), std::byte{0xFF}) {}
  Array(Dtype d, const std::vector<float>& values) : Array(d, values.size()) {
    quant::convert(quant::view(values), mut());
  }
  std::size_t size() const { return bytes.size() / size_of(dtype); }
  quant::ConstView view() const { return {bytes.data(), dtype, size()}; }
  quant::MutView mut() { return {bytes.data(), dtype, size()}; }
  std::vector<float> floats() const {
    std::vector<float> values(size());
    quant::convert(view(), quant::mut_view(values));
    return values;
  }
  friend bool operator==(const Array&, const Array&) = default;
};

/// Scratch of these tests is NaN until it is written.
struct PoisonedScratch {
  PoisonedScratch() { quant::Buffer::set_poison(true); }
};
inline const PoisonedScratch kPoisonedScratch;

/// Fan-outs, innermost first, of the topologies that all tests go through.
inline const std::vector<std::vector<int>> kTopologies = {
    {1}, {2}, {3}, {2, 2}, {3, 2}, {2, 3}, {4, 2}, {3, 4}, {2, 2, 3}, {4, 4}, {1, 4}, {4, 1}};
inline const std::vector<Algorithm> kAlgorithms = {Algorithm::kRing, Algorithm::kAllToAll,
                                                   Algorithm::kHierarchical};

/// {3, 4}: 4 nodes of 3 ranks each.
inline Topology topology(const std::vector<int>& fan_outs) {
  std::vector<hierarchy::Level> levels;
  for (const int fan_out : fan_outs) {
    levels.push_back({.name = "l" + std::to_string(levels.size()), .fan_out = fan_out});
  }
  return Topology(levels);
}

/// A deterministic value in [-1, 1) with all bits of a float in use.
float value(std::uint64_t seed, std::uint64_t a, std::uint64_t b);

/// Elements of a tensor that a rank holds at a modulus: chunks r with r mod M == rank mod M.
std::vector<float> cut(const std::vector<float>& whole, int world, int modulus, int rank);
/// First element, end of a world chunk.
std::pair<std::size_t, std::size_t> chunk_range(std::size_t numel, int world, int chunk);

using Codecs = std::vector<quant::CodecPtr>;
/// One codec a level; "" is null. An empty list stays empty.
Codecs make_codecs(const std::vector<std::string>& specs, Dtype wire);
std::vector<const quant::Codec*> raw(const Codecs& codecs);

/// A variable-rate codec: the non-zero elements alone, each as u32 index and fp32 value.
/// Lossless.
quant::CodecPtr non_zero_codec();

/// {coarse, prefixes of the topology in between that fit, fine}, or {coarse, fine}.
std::vector<int> oracle_chain(const Topology& t, Algorithm a, int coarse, int fine);
/// Innermost level whose group holds that many ranks.
int oracle_level(const Topology& t, int ranks);

/// A reduction as the oracle sees it: what every rank holds, whole (elements outside its coarse
/// shard are ignored).
struct ReduceProblem {
  Topology topology;
  CallOptions options;
  hierarchy::ReduceOptions reduce;
  std::uint32_t tensor = 0;
  Dtype in = Dtype::kF32;
  Dtype out = Dtype::kF32;
  std::vector<std::vector<float>> inputs;  ///< By rank.
  Codecs codecs;

  int world() const { return topology.ranks(); }
  int fine() const { return options.fine == 0 ? world() : options.fine; }
  std::size_t numel() const { return inputs[0].size(); }
  Array shard(int rank) const {
    return {in, cut(inputs[static_cast<std::size_t>(rank)], world(), options.coarse, rank)};
  }
};

/// The result of one world chunk in the block of `fine` ranks around `rank`: rounded to the
/// wire dtype, then to out's, as floats.
std::vector<float> oracle_chunk(const ReduceProblem& p, int rank, int chunk);
/// The shard of a rank at a modulus, made of such chunks.
Array oracle_shard(const ReduceProblem& p, int modulus, int rank);
/// The exact mean of the group in double, for bounds.
std::vector<double> mean_of_group(const ReduceProblem& p, int rank);

/// A topology and the moduli of a call.
struct Shape {
  std::vector<int> fan_outs;
  int coarse = 1;
  int fine = 0;
};
/// Deterministic inputs in [-1, 1) for a call of that shape; codecs by level.
ReduceProblem problem(const Shape& s, Algorithm algorithm, std::size_t numel,
                      const std::vector<std::string>& codecs = {}, Dtype wire = Dtype::kF32);
std::string text(const ReduceProblem& p, int rank);

enum class Call { kReduceScatter, kAllReduce };
/// Runs problems of one topology and one set of options in one call; outputs by problem.
std::vector<Array> run(Comm& comm, Call call, const std::vector<ReduceProblem>& problems);
/// The same on all ranks.
std::vector<std::vector<Array>> run(Call call, const std::vector<ReduceProblem>& problems,
                                    int workers = 1);

/// Runs `body` on every rank and returns what each returned. One worker unless given: thousands
/// of small calls would mostly wait for the other worker to be scheduled.
std::vector<std::vector<Array>> on_ranks(const Topology& t,
                                         const std::function<std::vector<Array>(Comm&)>& body,
                                         int workers = 1);

}  // namespace zeropp::test
