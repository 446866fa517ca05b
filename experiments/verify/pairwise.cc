#include <algorithm>
#include <set>
#include <tuple>

#include "experiments/verify/matrix.h"
#include "quant/rng.h"

namespace zeropp::experiments::verify {
namespace {

using Pair = std::tuple<int, int, int, int>;  // Factor, value, factor, value.

std::vector<Pair> pairs_of(const Cell& cell) {
  std::vector<Pair> pairs;
  for (int i = 0; i < kFactors; ++i) {
    for (int j = i + 1; j < kFactors; ++j) {
      pairs.emplace_back(i, factor(cell, i), j, factor(cell, j));
    }
  }
  return pairs;
}

template <class F>
void for_each_cell(F f, int i = 0, Cell cell = {}) {
  if (i == kFactors) {
    if (valid(cell)) f(cell);
    return;
  }
  for (int v = 0; v < factor_values(i); ++v) {
    factor(cell, i) = v;
    for_each_cell(f, i + 1, cell);
  }
}

/// A valid cell with that pair, the other factors drawn at random; false if none was found.
bool complete(const Pair& pair, const quant::Philox& random, std::uint64_t& draw, Cell& cell) {
  for (int tries = 0; tries < 2000; ++tries) {
    for (int i = 0; i < kFactors; ++i) {
      factor(cell, i) =
          static_cast<int>(random.word(draw++) % static_cast<std::uint32_t>(factor_values(i)));
    }
    factor(cell, std::get<0>(pair)) = std::get<1>(pair);
    factor(cell, std::get<2>(pair)) = std::get<3>(pair);
    if (valid(cell)) return true;
  }
  return false;
}

}  // namespace

std::vector<Cell> pairwise_cells() {
  std::set<Pair> open;
  for_each_cell([&](const Cell& cell) {
    for (const Pair& p : pairs_of(cell)) open.insert(p);
  });
  const quant::Philox random({.seed = 1, .purpose = quant::Purpose::kShared});
  std::uint64_t draw = 0;
  std::vector<Cell> cells;
  while (!open.empty()) {
    // Of some cells that cover the first open pair, the one that covers most.
    Cell best;
    std::size_t most = 0;
    for (int candidate = 0; candidate < 60; ++candidate) {
      Cell cell;
      if (!complete(*open.begin(), random, draw, cell)) continue;
      const auto pairs = pairs_of(cell);
      const auto covers = static_cast<std::size_t>(std::count_if(
          pairs.begin(), pairs.end(), [&](const Pair& p) { return open.count(p); }));
      if (covers > most) {
        most = covers;
        best = cell;
      }
    }
    if (most == 0) {  // A pair that only a handful of cells has: search them all.
      const Pair wanted = *open.begin();
      for_each_cell([&](const Cell& cell) {
        if (factor(cell, std::get<0>(wanted)) == std::get<1>(wanted) &&
            factor(cell, std::get<2>(wanted)) == std::get<3>(wanted)) {
          best = cell;
        }
      });
    }
    for (const Pair& p : pairs_of(best)) open.erase(p);
    cells.push_back(best);
  }
  return cells;
}

std::vector<Cell> full_cells() {
  std::vector<Cell> cells;
  int turn = 0;
  for_each_cell([&](const Cell& cell) {
    if (cell.precision != 0 || cell.bucket != 0 || cell.prefetch != 0 || cell.workers != 0 ||
        cell.resume != 0) {
      return;
    }
    Cell c = cell;
    int rest = turn++;  // Its digits, so that each factor goes through all its values.
    for (const int i : {9, 8, 7, 6, 3}) {
      factor(c, i) = rest % factor_values(i);
      rest /= factor_values(i);
    }
    if (!valid(c)) c.workers = 0;  // One rank has no two workers.
    if (!valid(c)) c.resume = 1;
    if (valid(c)) cells.push_back(c);
  });
  return cells;
}

}  // namespace zeropp::experiments::verify
