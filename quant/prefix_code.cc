#include "quant/prefix_code.h"

#include <algorithm>
#include <vector>

namespace zeropp::quant {
namespace {

struct Node {
  std::uint64_t weight = 0;
  int symbol = -1, left = -1, right = -1;
};

/// Depths of the leaves of Huffman's tree. Leaves are sorted, inner nodes are born in order of
/// weight, so the lightest of all is at the front of one of two queues.
CodeLengths depths(const std::array<std::uint64_t, 256>& counts) {
  std::vector<Node> nodes;
  for (int s = 0; s < 256; ++s) {
    const std::uint64_t count = counts[static_cast<std::size_t>(s)];
    if (count > 0) nodes.push_back({.weight = count, .symbol = s});
  }
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const Node& a, const Node& b) { return a.weight < b.weight; });
  const std::size_t leaves = nodes.size();
  std::size_t leaf = 0, inner = leaves;
  const auto lightest = [&] {
    const bool take_leaf =
        inner == nodes.size() || (leaf < leaves && nodes[leaf].weight <= nodes[inner].weight);
    return static_cast<int>(take_leaf ? leaf++ : inner++);
  };
  while (nodes.size() < 2 * leaves - 1) {
    Node parent;
    parent.left = lightest();
    parent.right = lightest();
    parent.weight = nodes[static_cast<std::size_t>(parent.left)].weight +
                    nodes[static_cast<std::size_t>(parent.right)].weight;
    nodes.push_back(parent);
  }
  CodeLengths lengths{};
  std::vector<std::uint8_t> depth(nodes.size());
  for (std::size_t i = nodes.size(); i-- > 0;) {
    const Node& n = nodes[i];
    if (n.symbol >= 0) {
      lengths[static_cast<std::size_t>(n.symbol)] = depth[i];
      continue;
    }
    for (const int child : {n.left, n.right}) {
      depth[static_cast<std::size_t>(child)] = static_cast<std::uint8_t>(depth[i] + 1);
    }
  }
  return lengths;
}

}  // namespace

CodeLengths code_lengths(std::array<std::uint64_t, 256> counts) {
  for (;;) {
    const CodeLengths lengths = depths(counts);
    if (*std::max_element(lengths.begin(), lengths.end()) <= kMaxCodeBits) return lengths;
    for (std::uint64_t& count : counts) count = (count + 1) / 2;
  }
}

std::array<std::uint16_t, 256> canonical_codes(const CodeLengths& lengths) {
  std::array<std::uint16_t, 256> codes{};
  unsigned next = 0;
  for (unsigned bits = 1; bits <= kMaxCodeBits; ++bits, next <<= 1) {
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      if (lengths[s] != bits) continue;
      unsigned reversed = 0;
      for (unsigned b = 0; b < bits; ++b) reversed |= ((next >> b) & 1) << (bits - 1 - b);
      codes[s] = static_cast<std::uint16_t>(reversed);
      ++next;
    }
  }
  return codes;
}

bool make_code_table(const CodeLengths& lengths, CodeTable& table) {
  std::size_t filled = 0;
  for (const std::uint8_t bits : lengths) {
    if (bits > kMaxCodeBits) return false;
    if (bits > 0) filled += table.size() >> bits;
  }
  if (filled != table.size()) return false;
  const auto codes = canonical_codes(lengths);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] == 0) continue;
    const std::size_t stride = std::size_t{1} << lengths[s];
    for (std::size_t at = codes[s]; at < table.size(); at += stride) {
      table[at] = {static_cast<std::uint8_t>(s), lengths[s]};
    }
  }
  return true;
}

}  // namespace zeropp::quant
