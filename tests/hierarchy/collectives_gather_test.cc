// All-gather: every algorithm, codec, dtype and shape against chunks encoded and decoded one by
// one, and pending gathers, buckets, shards in between and differences to what is there
// already.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "quant/error.h"
#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

using hierarchy::GatherTensor;

/// One tensor of a gather; ranks of different blocks of `fine` hold different values.
struct GatherProblem {
  std::uint32_t tensor = 0;
  std::size_t numel = 0;
  Dtype in = Dtype::kF32;
  Dtype out = Dtype::kF32;
  std::string codec = {};  ///< Empty: exact.

  std::vector<float> whole(int block) const {
    std::vector<float> x(numel);
    for (std::size_t i = 0; i < numel; ++i) {
      x[i] = value(tensor, static_cast<std::uint64_t>(block), i);
    }
    return x;
  }
  /// What `out` holds before: of use to differences alone, NaN without them.
  bool difference() const { return codec.rfind("delta|", 0) == 0; }
  std::vector<float> reference() const {
    std::vector<float> x(numel);
    for (std::size_t i = 0; i < numel; ++i) x[i] = 3 * value(tensor, 77, i);
    return Array(out, x).floats();
  }
};

Array expected(const GatherProblem& p, const Topology& t, const CallOptions& o, int rank) {
  const int world = t.ranks();
  const int fine = o.fine == 0 ? world : o.fine;
  std::vector<float> all = Array(p.in, p.whole(rank / fine)).floats();
  if (!p.codec.empty()) {
    const auto codec = quant::make_codec(p.codec, p.in);
    for (int chunk = 0; chunk < world; ++chunk) {
      const auto [begin, end] = chunk_range(p.numel, world, chunk);
      if (begin == end) continue;
      const Array x(p.in, std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                             all.begin() + static_cast<std::ptrdiff_t>(end)));
      // The sender is the chunk's owner in the world: blocks that hold the same values (HSDP,
      // MiCS) decode the same weights.
      const quant::CodecContext context{
          .seed = o.seed,
          .role = o.role,
          .tensor = p.tensor,
          .step = o.step,
          .micro = o.micro,
          .sender = static_cast<std::uint32_t>(chunk),
          .part = static_cast<std::uint32_t>(chunk),
          .level = static_cast<std::uint32_t>(oracle_level(t, fine))};
      std::vector<std::byte> wire(codec->max_wire_size(x.size()));
      wire.resize(codec->encode(x.view(), context, wire));
      codec->decode(wire, quant::mut_view(std::span(all).subspan(begin, end - begin)));
    }
  }
  if (p.difference()) {
    const std::vector<float> reference = p.reference();
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = reference[i] + all[i];
  }
  return {p.out, cut(all, world, o.coarse, rank)};
}

std::vector<Array> gather(Comm& comm, const CallOptions& o,
                          const std::vector<GatherProblem>& problems) {
  const int fine = o.fine == 0 ? comm.size() : o.fine;
  std::vector<Array> shards;
  std::vector<Array> outs;
  std::vector<GatherTensor> tensors;
  Codecs codecs;
  for (const GatherProblem& p : problems) {
    const auto whole = p.whole(comm.rank() / fine);
    shards.emplace_back(p.in, cut(whole, comm.size(), fine, comm.rank()));
    const auto before = cut(p.reference(), comm.size(), o.coarse, comm.rank());
    outs.push_back(p.difference() ? Array(p.out, before) : Array(p.out, before.size()));
    codecs.push_back(p.codec.empty() ? nullptr : quant::make_codec(p.codec, p.in));
  }
  for (std::size_t i = 0; i < problems.size(); ++i) {
    tensors.push_back({problems[i].tensor, problems[i].numel, shards[i].view(), outs[i].mut(),
                       codecs[i].get()});
  }
  all_gather(comm, o, tensors);
  return outs;
}

struct Case {
  CallOptions options;
  std::vector<GatherProblem> problems;
};

/// The ranks are started once for all cases.
void check(const Topology& t, const std::vector<Case>& cases) {
  const auto found = on_ranks(t, [&](Comm& comm) {
    std::vector<Array> all;
    for (const Case& c : cases) {
      for (Array& out : gather(comm, c.options, c.problems)) all.push_back(std::move(out));
    }
    return all;
  });
  for (int rank = 0; rank < t.ranks(); ++rank) {
    std::size_t i = 0;
    for (const Case& c : cases) {
      const CallOptions& o = c.options;
      for (const GatherProblem& p : c.problems) {
        EXPECT_TRUE(expected(p, t, o, rank) == found[static_cast<std::size_t>(rank)][i++])
            << name(o.algorithm) << " N=" << t.ranks() << " " << o.coarse << "<-" << o.fine
            << " numel=" << p.numel << " codec=" << p.codec << " rank=" << rank;
      }
    }
  }
}
void check(const Topology& t, const CallOptions& o,
           const std::vector<GatherProblem>& problems) {
  check(t, {{o, problems}});
}

const std::vector<std::string> kCodecs = {"",
                                          "identity",
                                          "bf16",
                                          "fp16",
                                          "int8:block=32",
                                          "int4:block=16,rounding=stochastic",
                                          "int4:block=128",
                                          "delta|int4:block=16,rounding=stochastic"};
const std::vector<std::size_t> kSizes = {0, 1, 3, 35, 1000, 4097};

TEST(AllGather, EveryAlgorithmCodecAndSizeInTheWorld) {
  for (const auto& fan_outs : kTopologies) {
    std::vector<Case> cases;
    for (const Algorithm algorithm : kAlgorithms) {
      const CallOptions o{.algorithm = algorithm, .seed = 5, .step = 9, .micro = 2};
      for (const std::string& codec : kCodecs) {
        for (const std::size_t numel : kSizes) {
          cases.push_back({o, {{.tensor = 7, .numel = numel, .codec = codec}}});
        }
      }
    }
    check(topology(fan_outs), cases);
  }
}

TEST(AllGather, EveryDtypeInAndOut) {
  constexpr Dtype kAll[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
  for (const Algorithm algorithm : kAlgorithms) {
    const CallOptions o{.algorithm = algorithm};
    for (const Dtype in : kAll) {
      check(topology({2, 3}), o, {{.numel = 35, .in = in, .out = in}});
      for (const Dtype out : kAll) {
        check(topology({2, 3}), o,
              {{.numel = 35, .in = in, .out = out, .codec = "int8:block=8"}});
      }
      check(topology({2, 3}), o, {{.numel = 35, .out = in, .codec = "delta|int8:block=8"}});
    }
  }
}

struct Shards {
  std::vector<int> fan_outs;
  int coarse, fine;
};
const std::vector<Shards> kShards = {
    {{4, 2}, 1, 4},     // hpZ: a node's secondary.
    {{4, 2}, 4, 8},     // HSDP: between nodes.
    {{2, 4}, 1, 4},     // A group of two nodes.
    {{3, 4}, 1, 4},     // Groups that straddle nodes.
    {{3, 4}, 1, 6},     // Two nodes, but also inside the chain 1, 3, 6.
    {{3, 4}, 2, 12},    // Coarse and prefix do not divide each other.
    {{2, 2, 3}, 2, 4},  // A middle level.
    {{2, 2, 3}, 2, 12}, {{2, 2, 3}, 4, 4}, {{4, 2}, 8, 8}};

TEST(AllGather, ShardsInBetween) {
  for (const Shards& s : kShards) {
    for (const Algorithm algorithm : kAlgorithms) {
      const CallOptions o{
          .algorithm = algorithm, .coarse = s.coarse, .fine = s.fine, .seed = 3};
      for (const std::string& codec : kCodecs) {
        check(topology(s.fan_outs), o,
              {{.tensor = 1, .numel = 35, .codec = codec}, {.tensor = 2, .numel = 333}});
      }
    }
  }
}

TEST(AllGather, BucketsDoNotChangeValues) {
  const std::vector<GatherProblem> bucket = {
      {.tensor = 0, .numel = 1000, .codec = "int4:block=16,rounding=stochastic"},
      {.tensor = 1, .numel = 3, .in = Dtype::kBF16, .out = Dtype::kBF16},
      {.tensor = 2, .numel = 0},
      {.tensor = 3, .numel = 35, .in = Dtype::kBF16, .out = Dtype::kF32, .codec = "int8"},
      {.tensor = 4, .numel = 97},
      {.tensor = 5, .numel = 61, .out = Dtype::kBF16, .codec = "delta|int4:block=16"},
      {.tensor = 6, .numel = 7, .out = Dtype::kF16, .codec = "delta|bf16"}};
  const Topology t = topology({3, 2});
  for (const Algorithm algorithm : kAlgorithms) {
    const CallOptions o{.algorithm = algorithm, .seed = 1};
    check(t, o, bucket);
    const auto together = on_ranks(
        t, [&](Comm& comm) { return gather(comm, o, bucket); }, 2);
    const auto alone = on_ranks(t, [&](Comm& comm) {
      std::vector<Array> outs;
      for (const GatherProblem& p : bucket) outs.push_back(gather(comm, o, {p})[0]);
      return outs;
    });
    EXPECT_TRUE(together == alone) << name(algorithm);
  }
}

TEST(AllGather, SeveralInFlightFinishInTheOrderOfTheirStart) {
  const Topology t = topology({3, 4});
  for (const Algorithm algorithm : kAlgorithms) {
    const CallOptions o{.algorithm = algorithm, .seed = 1};
    const std::vector<GatherProblem> problems = {{.tensor = 0, .numel = 100, .codec = "int8"},
                                                 {.tensor = 1, .numel = 35},
                                                 {.tensor = 2, .numel = 36, .codec = "bf16"}};
    const auto found = on_ranks(
        t,
        [&](Comm& comm) {
          std::vector<Array> shards;
          std::vector<Array> outs;
          Codecs codecs;
          for (const GatherProblem& p : problems) {
            shards.emplace_back(p.in, cut(p.whole(0), comm.size(), comm.size(), comm.rank()));
            outs.emplace_back(p.out, p.numel);
            codecs.push_back(p.codec.empty() ? nullptr : quant::make_codec(p.codec));
          }
          std::vector<hierarchy::PendingGather> pending;
          for (std::size_t i = 0; i < problems.size(); ++i) {
            const GatherTensor tensor{problems[i].tensor, problems[i].numel, shards[i].view(),
                                      outs[i].mut(), codecs[i].get()};
            pending.push_back(start_all_gather(comm, o, std::span(&tensor, 1)));
          }
          for (auto& p : pending) p.finish();
          pending[0].finish();  // Idempotent.
          return outs;
        },
        2);
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      for (std::size_t i = 0; i < problems.size(); ++i) {
        EXPECT_TRUE(expected(problems[i], t, o, static_cast<int>(rank)) == found[rank][i])
            << name(algorithm) << " rank " << rank << " tensor " << i;
      }
    }
  }
}

TEST(AllGather, ReplicasOfAShardDecodeTheSameWeights) {
  const Topology t = topology({4, 2});
  const CallOptions o{.fine = 4, .seed = 4};
  const auto found = on_ranks(t, [&](Comm& comm) {
    const std::vector<float> whole = GatherProblem{.numel = 100}.whole(0);
    const Array shard(Dtype::kF32, cut(whole, 8, 4, comm.rank()));
    std::vector<Array> out{Array(Dtype::kF32, 100)};
    const auto codec = quant::make_codec("int4:block=16,rounding=stochastic");
    const GatherTensor tensor{0, 100, shard.view(), out[0].mut(), codec.get()};
    all_gather(comm, o, std::span(&tensor, 1));
    return out;
  });
  for (const auto& outs : found) EXPECT_TRUE(outs[0] == found[0][0]);
}

// SDP4Bit's loop: each rank sends master - copy for its shard. Copies stay equal to the bit on
// every rank, and what one round loses the next one sends.
TEST(AllGather, DifferencesKeepCopiesEqualAndConverge) {
  const Topology t = topology({2, 3});
  const std::size_t numel = 101;
  const auto codec = quant::make_codec("delta|int4:block=32");
  for (const Algorithm algorithm : kAlgorithms) {
    std::vector<std::vector<double>> errors(6, std::vector<double>(6, 0.0));  // By rank.
    const auto found = on_ranks(t, [&](Comm& comm) {
      std::vector<Array> out{Array(Dtype::kF32, std::vector<float>(numel, 0.0F))};
      const GatherProblem p{.tensor = 3, .numel = numel};
      const auto master = cut(p.whole(0), 6, 6, comm.rank());
      for (double& error : errors[static_cast<std::size_t>(comm.rank())]) {
        auto d = cut(out[0].floats(), 6, 6, comm.rank());
        for (std::size_t i = 0; i < d.size(); ++i) d[i] = master[i] - d[i];
        const GatherTensor tensor{p.tensor, numel, quant::view(d), out[0].mut(), codec.get()};
        all_gather(comm, {.algorithm = algorithm}, std::span(&tensor, 1));
        const auto copy = cut(out[0].floats(), 6, 6, comm.rank());
        for (std::size_t i = 0; i < copy.size(); ++i) {
          error = std::max(error, std::fabs(double{master[i]} - copy[i]));
        }
      }
      return out;
    });
    for (const auto& copy : found) EXPECT_TRUE(copy[0] == found[0][0]) << name(algorithm);
    std::vector<double> worst(6, 0.0);
    for (const auto& mine : errors) {
      for (std::size_t i = 0; i < worst.size(); ++i) worst[i] = std::max(worst[i], mine[i]);
    }
    EXPECT_GT(worst[0], 1e-2);  // One round of four bits.
    for (std::size_t i = 1; i < worst.size(); ++i) {
      EXPECT_LE(worst[i], worst[i - 1] / 13 + 1e-7) << name(algorithm) << " round " << i;
    }
  }
}

TEST(AllGather, DifferencesAreForGathersAlone) {
  spawn(topology({2}), {}, [](hierarchy::Transport& transport) {
    Comm comm{.transport = transport};
    const auto codec = quant::make_codec("delta|int4");
    std::vector<float> one(1, 1.0F), two(2, 1.0F);
    Array half(Dtype::kBF16, std::vector<float>{1.0F});
    const GatherTensor bf16{0, 2, half.view(), quant::mut_view(two), codec.get()};
    EXPECT_THROW(all_gather(comm, {}, std::span(&bf16, 1)), UsageError);
    EXPECT_THROW(broadcast(comm, {}, 0, quant::mut_view(two), codec.get()), UsageError);
    EXPECT_THROW(all_to_all(comm, {},
                            {.in = quant::view(two),
                             .out = quant::mut_view(two),
                             .n = 1,
                             .codec = codec.get()}),
                 UsageError);
    const quant::Codec* codecs[] = {codec.get()};
    const hierarchy::ReduceTensor tensor{
        .numel = 2, .in = quant::view(two), .out = quant::mut_view(one), .codecs = codecs};
    EXPECT_THROW(reduce_scatter(comm, {}, {}, std::span(&tensor, 1)), UsageError);
    const hierarchy::ReduceTensor whole{
        .numel = 2, .in = quant::view(two), .out = quant::mut_view(two), .codecs = codecs};
    EXPECT_THROW(all_reduce(comm, {}, {}, std::span(&whole, 1)), UsageError);
  });
}

TEST(AllGather, RefusesWhatItCannotDo) {
  spawn(topology({2, 2}), {}, [](hierarchy::Transport& transport) {
    Comm comm{.transport = transport};
    std::vector<float> shard(2);
    std::vector<float> out(8);
    const auto call = [&](CallOptions o, quant::ConstView s, quant::MutView to) {
      const GatherTensor tensor{.numel = 8, .shard = s, .out = to};
      all_gather(comm, o, std::span(&tensor, 1));
    };
    const auto s = quant::view(shard);
    const auto to = quant::mut_view(out);
    EXPECT_THROW(call({.algorithm = Algorithm::kNative}, s, to), UsageError);
    EXPECT_THROW(call({.coarse = 3}, s, to), UsageError);
    EXPECT_THROW(call({.fine = 3}, s, to), UsageError);
    EXPECT_THROW(call({.coarse = 0}, s, to), UsageError);
    EXPECT_THROW(call({}, s.slice(0, 1), to), UsageError);
    EXPECT_THROW(call({}, s, to.slice(0, 7)), UsageError);
    EXPECT_THROW(call({}, s, {out.data(), Dtype::kBF16, 8}), UsageError);
    call({}, s, to);
  });
}

TEST(AllGather, ChainsAndLevels) {
  const Topology t = topology({3, 4, 2});
  using V = std::vector<int>;
  EXPECT_EQ(hop_chain(t, Algorithm::kHierarchical, 1, 24), (V{1, 3, 12, 24}));
  EXPECT_EQ(hop_chain(t, Algorithm::kHierarchical, 1, 6), (V{1, 3, 6}));
  EXPECT_EQ(hop_chain(t, Algorithm::kHierarchical, 1, 4), (V{1, 4}));
  EXPECT_EQ(hop_chain(t, Algorithm::kHierarchical, 2, 24), (V{2, 12, 24}));
  EXPECT_EQ(hop_chain(t, Algorithm::kHierarchical, 3, 3), (V{3}));
  EXPECT_EQ(hop_chain(t, Algorithm::kRing, 1, 24), (V{1, 24}));
  EXPECT_EQ(hop_chain(t, Algorithm::kAllToAll, 3, 12), (V{3, 12}));
  EXPECT_EQ(hop_chain(topology({1, 4, 1}), Algorithm::kHierarchical, 1, 4), (V{1, 4}));
  EXPECT_EQ(hop_level(t, 1), 0);
  EXPECT_EQ(hop_level(t, 2), 0);
  EXPECT_EQ(hop_level(t, 3), 0);
  EXPECT_EQ(hop_level(t, 4), 1);
  EXPECT_EQ(hop_level(t, 12), 1);
  EXPECT_EQ(hop_level(t, 24), 2);
}

}  // namespace
}  // namespace zeropp::test
