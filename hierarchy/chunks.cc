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
  const std::size_t chunk = map.chunk_elems();
  if (chunk == 0) return 0;
  const auto m = static_cast<std::size_t>(modulus);
  const std::size_t residue = static_cast<std::size_t>(rank) % m;
  const std::size_t full = map.numel / chunk;  // Chunks before the short one.
  const std::size_t mine = full > residue ? (full - residue - 1) / m + 1 : 0;
  return mine * chunk + (full % m == residue ? map.numel % chunk : 0);
}

}  // namespace zeropp::hierarchy
