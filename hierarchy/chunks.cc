#include "hierarchy/chunks.h"

namespace zeropp::hierarchy {

std::vector<ShardPiece> shard_pieces(const ChunkMap& map, int modulus, int rank) {
  std::vector<ShardPiece> pieces;
  pieces.reserve(static_cast<std::size_t>(map.world / modulus));
  std::size_t local = 0;
  for (int chunk = rank % modulus; chunk < map.world; chunk += modulus) {
    pieces.push_back(
        {.chunk = chunk, .global = map.begin(chunk), .local = local, .size = map.size(chunk)});
    local += pieces.back().size;
  }
  return pieces;
}

std::size_t shard_elems(const ChunkMap& map, int modulus, int rank) {
  const ShardCounts counts(map, modulus);
  const auto residue = static_cast<std::size_t>(rank % modulus);
  return counts.full(residue) * map.chunk_elems() + counts.rest(residue);
}

}  // namespace zeropp::hierarchy
