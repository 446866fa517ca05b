#include "hierarchy/chunks.h"

#include <gtest/gtest.h>

#include <vector>

namespace zeropp::hierarchy {
namespace {

class Chunks : public testing::TestWithParam<int> {};

const std::vector<std::size_t> kNumels = {0, 1, 3, 35, 1000, 4097};

TEST_P(Chunks, PartitionTheTensor) {
  for (std::size_t numel : kNumels) {
    const ChunkMap map{.numel = numel, .world = GetParam()};
    std::size_t end = 0;
    for (int c = 0; c < map.world; ++c) {
      EXPECT_EQ(map.begin(c), end);
      EXPECT_LE(map.size(c), map.chunk_elems());
      if (c > 0) {
        EXPECT_LE(map.size(c), map.size(c - 1)) << "only late chunks are short";
      }
      end = map.begin(c) + map.size(c);
    }
    EXPECT_EQ(end, numel);
  }
}

TEST_P(Chunks, ShardsOfAGroupHoldEveryElementOnce) {
  const int world = GetParam();
  for (std::size_t numel : kNumels) {
    const ChunkMap map{.numel = numel, .world = world};
    for (int modulus = 1; modulus <= world; ++modulus) {
      if (world % modulus != 0) continue;
      std::vector<int> holders(numel, 0);
      for (int member = 0; member < modulus; ++member) {
        std::size_t local = 0;
        int previous = -1;
        for (const ShardPiece& p : shard_pieces(map, modulus, member)) {
          EXPECT_GT(p.chunk, previous);
          EXPECT_EQ(p.chunk % modulus, member);
          EXPECT_EQ(p.global, map.begin(p.chunk));
          EXPECT_EQ(p.size, map.size(p.chunk));
          EXPECT_EQ(p.local, local) << "pieces leave no gap";
          for (std::size_t i = 0; i < p.size; ++i) ++holders[p.global + i];
          local += p.size;
          previous = p.chunk;
        }
        EXPECT_EQ(local, shard_elems(map, modulus, member));
      }
      EXPECT_EQ(holders, std::vector<int>(numel, 1)) << "modulus " << modulus;
    }
  }
}

TEST_P(Chunks, EveryGroupCutsAlike) {
  const int world = GetParam();
  const ChunkMap map{.numel = 1000, .world = world};
  for (int modulus = 1; modulus <= world; ++modulus) {
    if (world % modulus != 0) continue;
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_EQ(shard_elems(map, modulus, rank), shard_elems(map, modulus, rank % modulus));
      const auto pieces = shard_pieces(map, modulus, rank);
      ASSERT_EQ(pieces.size(), static_cast<std::size_t>(world / modulus));
      EXPECT_EQ(pieces.front().chunk, rank % modulus);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Chunks, testing::Values(1, 2, 3, 4, 6, 8, 12, 16, 100));

TEST(ChunksExamples, OwnChunkAndWholeTensor) {
  const ChunkMap map{.numel = 35, .world = 8};  // Chunks of 5: seven full, the last empty.
  EXPECT_EQ(map.chunk_elems(), 5u);
  EXPECT_EQ(map.size(6), 5u);
  EXPECT_EQ(map.size(7), 0u);
  EXPECT_EQ(shard_pieces(map, 8, 3).front().global, 15u);
  EXPECT_EQ(shard_elems(map, 1, 3), 35u);
  EXPECT_EQ(shard_elems(map, 4, 3), 5u);  // Chunks 3 and 7.
}

}  // namespace
}  // namespace zeropp::hierarchy
