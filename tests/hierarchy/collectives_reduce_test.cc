// Reduce-scatter and all-reduce against the gather-then-compute oracle, bit for bit:
// algorithms, codecs by level, dtypes, shapes, shards in between, buckets, faults.

#include <gtest/gtest.h>

#include <cmath>

#include "quant/error.h"
#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

using hierarchy::ReduceOptions;
using hierarchy::ReduceTensor;

/// All problems have one topology: the ranks are started once for all of them.
void check(const std::vector<ReduceProblem>& problems) {
  const auto found = on_ranks(problems[0].topology, [&](Comm& comm) {
    std::vector<Array> outs;
    for (const ReduceProblem& p : problems) {
      outs.push_back(run(comm, Call::kReduceScatter, {p})[0]);
      outs.push_back(run(comm, Call::kAllReduce, {p})[0]);
    }
    return outs;
  });
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const ReduceProblem& p = problems[i];
    for (int rank = 0; rank < p.world(); ++rank) {
      const auto& outs = found[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(oracle_shard(p, p.fine(), rank) == outs[2 * i]) << text(p, rank);
      EXPECT_TRUE(oracle_shard(p, p.options.coarse, rank) == outs[2 * i + 1])
          << "all_reduce " << text(p, rank);
    }
  }
}

const std::vector<std::size_t> kSizes = {0, 1, 3, 35, 1000, 4097};
const std::vector<Shape> kShards = {
    {{4, 2}, 1, 4},    {{4, 2}, 4, 8},     {{3, 4}, 1, 4},     {{3, 4}, 1, 6}, {{3, 4}, 2, 12},
    {{2, 2, 3}, 2, 4}, {{2, 2, 3}, 2, 12}, {{2, 2, 3}, 1, 12}, {{2, 2}, 4, 4}, {{2, 2}, 2, 2}};

/// The spec of every level, or by level for two.
std::vector<std::string> by_level(const std::vector<int>& fan_outs, const std::string& inner,
                                  const std::string& outer) {
  std::vector<std::string> specs(fan_outs.size(), outer);
  specs[0] = inner;
  return specs;
}

TEST(Reduce, ExactInEveryAlgorithmSizeAndWireDtype) {
  for (const auto& fan_outs : kTopologies) {
    std::vector<ReduceProblem> problems;
    for (const Algorithm algorithm : kAlgorithms) {
      for (const Dtype wire : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
        for (const std::size_t numel : kSizes) {
          problems.push_back(problem({fan_outs}, algorithm, numel, {}, wire));
        }
      }
    }
    check(problems);
  }
}

TEST(Reduce, CodecsByLevel) {
  const std::vector<std::pair<std::string, std::string>> lists = {
      {"identity", "identity"},
      {"bf16", "fp16"},
      {"int8:block=32", "int8:block=32"},
      {"int8:block=64", "int4:block=16"},
      {"int4:block=16,rounding=stochastic", "int4:block=16,rounding=stochastic"},
      {"int5:block=16,rounding=shift,scheme=asymmetric", "int4:block=16,rounding=correlated"},
      {"", "int4:block=128"}};
  for (const auto& fan_outs : kTopologies) {
    std::vector<ReduceProblem> problems;
    for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      for (const auto& [inner, outer] : lists) {
        for (const std::size_t numel : kSizes) {
          problems.push_back(problem({fan_outs}, algorithm, numel,
                                     by_level(fan_outs, inner, outer), Dtype::kBF16));
        }
      }
    }
    check(problems);
  }
}

TEST(Reduce, EveryDtypeInWireAndOut) {
  constexpr Dtype kAll[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
  for (const Algorithm algorithm : kAlgorithms) {
    for (const Dtype in : kAll) {
      for (const Dtype wire : kAll) {
        for (const Dtype out : kAll) {
          auto p = problem({{3, 2}}, algorithm, 35, {}, wire);
          p.in = in;
          p.out = out;
          check({p});
          if (algorithm == Algorithm::kRing) continue;
          p.codecs = make_codecs({"int8:block=8", "int4:block=8"}, wire);
          check({p});
        }
      }
    }
  }
}

TEST(Reduce, ShardsInBetween) {
  for (const Shape& s : kShards) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const std::size_t numel : {std::size_t{5}, std::size_t{333}}) {
        check({problem(s, algorithm, numel, {}, Dtype::kBF16)});
        if (algorithm == Algorithm::kRing) continue;
        check({problem(s, algorithm, numel,
                       by_level(s.fan_outs, "int8:block=16", "int4:block=8"))});
      }
    }
  }
}

TEST(Reduce, PredivideMovesAFactorBehindTheSum) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const double f : {1.0, 2.0, 3.0, 6.0, 7.5}) {
      for (const Shape& s : {Shape{{3, 2}}, Shape{{2, 3}, 2, 6}, Shape{{1}}}) {
        for (const Dtype wire : {Dtype::kF32, Dtype::kBF16}) {
          auto p = problem(s, algorithm, 100, {}, wire);
          p.reduce.predivide = f;
          check({p});
          if (algorithm == Algorithm::kRing) continue;
          p.codecs = make_codecs(by_level(s.fan_outs, "int8", "int4:block=16"), wire);
          check({p});
        }
      }
    }
  }
}

TEST(Reduce, BucketsDoNotChangeValues) {
  for (const Algorithm algorithm : kAlgorithms) {
    std::vector<ReduceProblem> bucket;
    for (const std::size_t numel : {std::size_t{100}, std::size_t{0}, std::size_t{3},
                                    std::size_t{1000}, std::size_t{37}}) {
      bucket.push_back(problem({{3, 2}}, algorithm, numel));
      bucket.back().tensor = static_cast<std::uint32_t>(bucket.size());
    }
    bucket[2].in = Dtype::kBF16;
    if (algorithm != Algorithm::kRing) {
      bucket[0].codecs =
          make_codecs({"int8", "int4:block=16,rounding=stochastic"}, Dtype::kF32);
      bucket[4].codecs = make_codecs({"int4:block=7", "int4:block=7"}, Dtype::kF32);
    }
    for (const Call call : {Call::kReduceScatter, Call::kAllReduce}) {
      const auto together = run(call, bucket, 2);
      for (std::size_t i = 0; i < bucket.size(); ++i) {
        const auto alone = run(call, {bucket[i]});
        for (std::size_t rank = 0; rank < alone.size(); ++rank) {
          EXPECT_TRUE(together[rank][i] == alone[rank][0])
              << text(bucket[i], static_cast<int>(rank));
        }
      }
    }
  }
}

TEST(Reduce, InnerThenOuterIsTheWholeHierarchy) {
  // HSDP and MiCS reduce in the node and then between nodes in two calls.
  for (const Dtype wire : {Dtype::kF32, Dtype::kBF16}) {
    auto whole = problem({{3, 4}}, Algorithm::kHierarchical, 1000, {}, wire);
    whole.in = whole.out = wire;
    const auto once = run(Call::kReduceScatter, {whole});
    const auto twice = on_ranks(whole.topology, [&](Comm& comm) {
      const Array in = whole.shard(comm.rank());
      const auto n = cut(whole.inputs[0], 12, 3, comm.rank()).size();
      Array middle(wire, n);
      std::vector<Array> out{Array(wire, cut(whole.inputs[0], 12, 12, comm.rank()).size())};
      CallOptions inner = whole.options;
      inner.fine = 3;
      CallOptions outer = whole.options;
      outer.coarse = 3;
      const ReduceTensor first{5, 1000, in.view(), middle.mut(), {}};
      reduce_scatter(comm, inner, whole.reduce, std::span(&first, 1));
      const ReduceTensor second{5, 1000, middle.view(), out[0].mut(), {}};
      reduce_scatter(comm, outer, whole.reduce, std::span(&second, 1));
      return out;
    });
    EXPECT_TRUE(once == twice);
  }
}

TEST(Reduce, AllReduceInPlace) {
  for (const Algorithm algorithm : kAlgorithms) {
    const auto p = problem({{3, 2}}, algorithm, 1000);
    const auto found = on_ranks(p.topology, [&](Comm& comm) {
      std::vector<Array> x{p.shard(comm.rank())};
      const ReduceTensor tensor{5, 1000, x[0].view(), x[0].mut(), {}};
      all_reduce(comm, p.options, p.reduce, std::span(&tensor, 1));
      return x;
    });
    for (const auto& outs : found) EXPECT_TRUE(outs[0] == oracle_shard(p, 1, 0));
  }
}

TEST(Reduce, DeliberateFaultsChangeTheResult) {
  const auto differs = [](const ReduceProblem& good, bool ReduceOptions::*fault) {
    ReduceProblem bad = good;
    bad.reduce.*fault = true;
    const bool scatter = run(Call::kReduceScatter, {good}) != run(Call::kReduceScatter, {bad});
    const bool reduce = run(Call::kAllReduce, {good}) != run(Call::kAllReduce, {bad});
    EXPECT_EQ(scatter, reduce);
    return scatter;
  };
  for (const Algorithm algorithm : kAlgorithms) {
    const auto fp32 = problem({{3, 2}}, algorithm, 1000);
    const auto bf16 = problem({{3, 2}}, algorithm, 1000, {}, Dtype::kBF16);
    EXPECT_TRUE(differs(bf16, &ReduceOptions::test_skip_rounding)) << name(algorithm);
    EXPECT_TRUE(differs(fp32, &ReduceOptions::test_reverse_order)) << name(algorithm);
    if (algorithm == Algorithm::kRing) continue;
    EXPECT_FALSE(differs(fp32, &ReduceOptions::test_own_unrounded)) << name(algorithm);
    EXPECT_TRUE(differs(bf16, &ReduceOptions::test_own_unrounded)) << name(algorithm);
    const auto coded = problem({{3, 2}}, algorithm, 1000, {"int8", "int4"});
    EXPECT_TRUE(differs(coded, &ReduceOptions::test_own_unrounded)) << name(algorithm);
  }
  // Where the first hop is exact, the fault shows in the second one.
  auto exact_input = problem({{3, 2}}, Algorithm::kHierarchical, 1000, {}, Dtype::kBF16);
  exact_input.in = Dtype::kBF16;
  EXPECT_TRUE(differs(exact_input, &ReduceOptions::test_own_unrounded));
}

TEST(Reduce, RefusesWhatItCannotDo) {
  spawn(topology({2, 2}), {}, [](hierarchy::Transport& transport) {
    Comm comm{.transport = transport};
    std::vector<float> in(8);
    std::vector<float> out(8);
    const auto int8 = quant::make_codec("int8");
    const std::vector<const quant::Codec*> two{int8.get(), int8.get()};
    const std::vector<const quant::Codec*> one{int8.get()};
    const auto call = [&](const CallOptions& o, const ReduceOptions& r, std::size_t n,
                          std::span<const quant::Codec* const> codecs) {
      const ReduceTensor tensor{0, 8, quant::view(in), {out.data(), Dtype::kF32, n}, codecs};
      reduce_scatter(comm, o, r, std::span(&tensor, 1));
    };
    EXPECT_THROW(call({.algorithm = Algorithm::kRing}, {}, 2, two), UsageError);
    EXPECT_THROW(call({.algorithm = Algorithm::kNative}, {}, 2, {}), UsageError);
    EXPECT_THROW(call({}, {}, 2, one), UsageError);
    EXPECT_THROW(call({}, {}, 8, {}), UsageError);
    EXPECT_THROW(call({}, {.predivide = -1}, 2, {}), UsageError);
    EXPECT_THROW(call({}, {.predivide = std::nan("")}, 2, {}), UsageError);
    call({}, {}, 2, two);
    const ReduceTensor tensor{
        0, 8, quant::view(in), quant::mut_view(std::span(out).first(2)), {}};
    EXPECT_THROW(all_reduce(comm, {}, {}, std::span(&tensor, 1)), UsageError);
  });
}

}  // namespace
}  // namespace zeropp::test
