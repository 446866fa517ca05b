#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hierarchy/topology.h"
#include "zero/engine.h"

namespace zeropp::experiments::verify {

/// A way to run a training that must give the same bits as every other member of its family (at
/// the same topology, accumulation, algorithm, precision and head).
struct Scheme {
  std::string family;  ///< "exact micro_step", "exact boundary", "mics two_hop", "qwz", ...
  std::string name;
  zero::SchemeRequest request;  ///< Group sizes of -1 mean the ranks of one node.
  std::string weights;          ///< Codec spec, empty = exact.
  std::string gradients;
  bool hierarchical_only = false;
};
/// With two for every example of a plug-in's codecs.
const std::vector<Scheme>& schemes();

/// One cell of the matrix. Fields are indices into the tables below.
struct Cell {
  int topology = 0, gas = 0, algorithm = 0, precision = 0, head = 0, scheme = 0;
  int bucket = 0, prefetch = 0, workers = 0;  ///< May not change a bit (law 2).
  int resume = 0;                             ///< Nor may this: where a checkpoint comes from.
};
inline constexpr int kFactors = 10;
int& factor(Cell& cell, int i);
int factor(const Cell& cell, int i);
int factor_values(int i);  ///< Size of the table of factor i.

const std::vector<hierarchy::Topology>& topologies();
struct Precision {
  std::string name;
  quant::Dtype dtype, accum, wire;
};
const std::vector<Precision>& precisions();
int gas_of(const Cell& cell);
hierarchy::Algorithm algorithm_of(const Cell& cell);
bool tied_of(const Cell& cell);
int workers_of(const Cell& cell);
/// Training stops after the first step and goes on in new engines.
enum class Resume : std::uint8_t {
  kNo,
  kOwn,        ///< The checkpoint is the cell's own.
  kReference,  ///< It was made by the cell of reference_of(): another stage.
};
Resume resume_of(const Cell& cell);

/// Impossible cells: coded gradients on a ring or on one rank, groups of one rank, differences
/// to a secondary that is the world's, ...
bool valid(const Cell& cell);
/// The cell that others of its family are compared with: first scheme, one worker, no prefetch,
/// one bucket.
Cell reference_of(Cell cell);
std::string label(const Cell& cell);

zero::GptConfig model_of(const Cell& cell);
zero::EngineConfig engine_of(const Cell& cell, std::uint64_t parameters);

/// Cells such that every pair of values of two factors that can occur together does occur
/// (greedy; deterministic).
std::vector<Cell> pairwise_cells();
/// Every scheme on every topology, accumulation, algorithm and head; the rest cycles.
std::vector<Cell> full_cells();

}  // namespace zeropp::experiments::verify
