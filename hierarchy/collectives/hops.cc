#include <fmt/format.h>

#include "hierarchy/collectives.h"
#include "quant/error.h"

namespace zeropp::hierarchy {

std::vector<int> hop_chain(const Topology& topology, Algorithm algorithm, int coarse,
                           int fine) {
  if (coarse < 1 || fine < 1 || fine % coarse != 0) {
    throw UsageError("collectives", "a coarse modulus that divides the fine one",
                     fmt::format("coarse = {}, fine = {}", coarse, fine));
  }
  std::vector<int> chain{coarse};
  if (algorithm == Algorithm::kHierarchical) {
    for (const int prefix : topology.prefix_sizes()) {
      const bool between = prefix > chain.back() && prefix < fine;
      if (between && prefix % coarse == 0 && fine % prefix == 0) chain.push_back(prefix);
    }
  }
  if (fine > chain.back()) chain.push_back(fine);
  return chain;
}

int hop_level(const Topology& topology, int fine) {
  int level = 0;
  while (level + 1 < topology.levels() && topology.group_size(level) < fine) ++level;
  return level;
}

}  // namespace zeropp::hierarchy
