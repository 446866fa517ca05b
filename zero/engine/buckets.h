#pragma once

#include <cstdint>
#include <vector>

namespace zeropp::zero {

/// DeepSpeed's rule: a tensor that would overfill an open bucket closes it first, a bucket
/// closes when it reaches the limit; so a larger tensor travels alone and limit 1 is a tensor
/// each. Tensors keep their order. `numel(t)` is the size of tensor t.
template <class Numel>
std::vector<std::vector<std::uint32_t>> make_buckets(const std::vector<std::uint32_t>& order,
                                                     std::uint64_t limit, Numel numel) {
  std::vector<std::vector<std::uint32_t>> buckets;
  std::vector<std::uint32_t> open;
  std::uint64_t elements = 0;
  const auto close = [&] {
    if (!open.empty()) buckets.push_back(std::move(open));
    open.clear();
    elements = 0;
  };
  for (const std::uint32_t t : order) {
    if (elements + numel(t) > limit) close();
    open.push_back(t);
    elements += numel(t);
    if (elements >= limit) close();
  }
  close();
  return buckets;
}

}  // namespace zeropp::zero
