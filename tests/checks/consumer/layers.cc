// The upper layers are usable from outside too: what ZeRO-3 keeps on a rank.
#include <cstdio>

#include "hierarchy/topology.h"
#include "zero/policy.h"

int main() {
  namespace zero = zeropp::zero;
  const zero::StagePolicy policy = zero::make_policy({.stage = 3}, 8);
  const auto bytes = zero::state_bytes(policy, {}, 1'000'000, 8, 0).total();
  std::printf("stage 3 of 1,000,000 parameters on 8 ranks: %llu bytes a rank\n",
              static_cast<unsigned long long>(bytes));
  return bytes == 16u * 125'000 ? 0 : 1;
}
