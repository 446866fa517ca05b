#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zeropp::hierarchy {

/// The one owner map. A tensor's flat elements are cut into N contiguous world chunks of
/// ceil(numel/N); rank r owns chunk r; late chunks may be short or empty.
struct ChunkMap {
  std::size_t numel = 0;
  int world = 1;

  std::size_t chunk_elems() const {
    return (numel + static_cast<std::size_t>(world) - 1) / static_cast<std::size_t>(world);
  }
  std::size_t begin(int chunk) const {
    return std::min(static_cast<std::size_t>(chunk) * chunk_elems(), numel);
  }
  std::size_t size(int chunk) const { return begin(chunk + 1) - begin(chunk); }
};

/// One world chunk inside a shard.
struct ShardPiece {
  int chunk;           ///< World chunk.
  std::size_t global;  ///< First element in the tensor.
  std::size_t local;   ///< First element in the shard.
  std::size_t size;    ///< Elements, may be 0.
};

/// What one rank holds of a tensor that is sharded with modulus M (M divides N): the world
/// chunks r with r mod M == rank mod M, ascending, without gaps. M = N is the rank's own chunk,
/// M = 1 the whole tensor, M = ranks per node the hpZ / MiCS / HSDP shard.
std::vector<ShardPiece> shard_pieces(const ChunkMap& map, int modulus, int rank);
std::size_t shard_elems(const ChunkMap& map, int modulus, int rank);

/// How many chunks the shards of a modulus hold, by residue: full ones, and the elements of the
/// short one that comes last.
class ShardCounts {
 public:
  ShardCounts(const ChunkMap& map, int modulus) {
    const std::size_t chunk = map.chunk_elems();
    if (chunk == 0) return;
    const auto m = static_cast<std::size_t>(modulus);
    const std::size_t full = map.numel / chunk;
    each_ = full / m;
    more_ = full % m;
    rest_ = map.numel % chunk;
  }
  std::size_t full(std::size_t residue) const { return each_ + (residue < more_ ? 1 : 0); }
  std::size_t rest(std::size_t residue) const { return residue == more_ ? rest_ : 0; }

 private:
  std::size_t each_ = 0, more_ = 0, rest_ = 0;
};

}  // namespace zeropp::hierarchy
