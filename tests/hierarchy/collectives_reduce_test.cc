// Reduce-scatter and all-reduce against the gather-then-compute oracle, bit for bit:
// algorithms, codecs by level, dtypes, shapes, shards in between; then answers that are known
// exactly.

#include <gtest/gtest.h>

#include <cmath>

#include "quant/error.h"
#include "quant/memory.h"
#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

using hierarchy::ReduceOptions;
using hierarchy::ReduceTensor;

class Poisoned : public testing::Environment {
 public:
  void SetUp() override { quant::Buffer::set_poison(true); }
  void TearDown() override { quant::Buffer::set_poison(false); }
};
const auto* const kPoisoned = testing::AddGlobalTestEnvironment(new Poisoned);

struct Shape {
  std::vector<int> fan_outs;
  int coarse = 1;
  int fine = 0;
};

ReduceProblem problem(const Shape& s, Algorithm algorithm, std::size_t numel,
                      const std::vector<std::string>& codecs = {}, Dtype wire = Dtype::kF32) {
  ReduceProblem p{.topology = topology(s.fan_outs),
                  .options = {.algorithm = algorithm,
                              .role = quant::Role::kGradient,
                              .coarse = s.coarse,
                              .fine = s.fine,
                              .seed = 11,
                              .step = 3,
                              .micro = 1},
                  .reduce = {.wire = wire},
                  .tensor = 5,
                  .inputs = {},
                  .codecs = make_codecs(codecs, wire)};
  for (int rank = 0; rank < p.world(); ++rank) {
    std::vector<float> x(numel);
    for (std::size_t i = 0; i < numel; ++i)
      x[i] = value(1, static_cast<std::uint64_t>(rank), i);
    p.inputs.push_back(x);
  }
  return p;
}

enum class Call { kReduceScatter, kAllReduce };

/// Runs several problems of one topology and one set of options in one call.
std::vector<Array> run(Comm& comm, Call call, const std::vector<ReduceProblem>& problems) {
  std::vector<Array> shards;
  std::vector<Array> outs;
  std::vector<std::vector<const quant::Codec*>> codecs;
  std::vector<ReduceTensor> tensors;
  for (const ReduceProblem& p : problems) {
    const int modulus = call == Call::kAllReduce ? p.options.coarse : p.fine();
    shards.push_back(p.shard(comm.rank()));
    outs.emplace_back(p.out, cut(p.inputs[0], comm.size(), modulus, comm.rank()).size());
    codecs.push_back(raw(p.codecs));
  }
  for (std::size_t i = 0; i < problems.size(); ++i) {
    tensors.push_back(
        {problems[i].tensor, problems[i].numel(), shards[i].view(), outs[i].mut(), codecs[i]});
  }
  (call == Call::kAllReduce ? hierarchy::all_reduce : hierarchy::reduce_scatter)(
      comm, problems[0].options, problems[0].reduce, tensors);
  return outs;
}
std::vector<std::vector<Array>> run(Call call, const std::vector<ReduceProblem>& problems) {
  return on_ranks(problems[0].topology, [&](Comm& comm) { return run(comm, call, problems); });
}

std::string text(const ReduceProblem& p, int rank) {
  std::string codecs;
  for (const auto& codec : p.codecs) codecs += (codec ? codec->spec() : "-") + " ";
  return fmt::format("{} N={} {}->{} numel={} wire={} in={} out={} f={} codecs {}rank {}",
                     name(p.options.algorithm), p.world(), p.options.coarse, p.fine(),
                     p.numel(), quant::name(p.reduce.wire), quant::name(p.in),
                     quant::name(p.out), p.reduce.predivide, codecs, rank);
}

void check(const ReduceProblem& p) {
  const auto scattered = run(Call::kReduceScatter, {p});
  const auto reduced = run(Call::kAllReduce, {p});
  for (int rank = 0; rank < p.world(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_TRUE(oracle_shard(p, p.fine(), rank) == scattered[r][0]) << text(p, rank);
    EXPECT_TRUE(oracle_shard(p, p.options.coarse, rank) == reduced[r][0])
        << "all_reduce " << text(p, rank);
  }
}

const std::vector<std::vector<int>> kTopologies = {
    {1}, {2}, {3}, {2, 2}, {3, 2}, {2, 3}, {4, 2}, {3, 4}, {2, 2, 3}, {4, 4}, {1, 4}, {4, 1}};
const std::vector<Algorithm> kAlgorithms = {Algorithm::kRing, Algorithm::kAllToAll,
                                            Algorithm::kHierarchical};
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
    for (const Algorithm algorithm : kAlgorithms) {
      for (const Dtype wire : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
        for (const std::size_t numel : kSizes) {
          check(problem({fan_outs}, algorithm, numel, {}, wire));
        }
      }
    }
  }
}

TEST(Reduce, CodecsByLevel) {
  const std::vector<std::pair<std::string, std::string>> lists = {
      {"identity", "identity"},
      {"bf16", "fp16"},
      {"int8:block=32", "int8:block=32"},
      {"int8:block=64", "int4:block=16"},
      {"int4:block=16,rounding=stochastic", "int4:block=16,rounding=stochastic"},
      {"", "int4:block=128"}};
  for (const auto& fan_outs : kTopologies) {
    for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      for (const auto& [inner, outer] : lists) {
        for (const std::size_t numel : kSizes) {
          check(problem({fan_outs}, algorithm, numel, by_level(fan_outs, inner, outer),
                        Dtype::kBF16));
        }
      }
    }
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
          check(p);
          if (algorithm == Algorithm::kRing) continue;
          p.codecs = make_codecs({"int8:block=8", "int4:block=8"}, wire);
          check(p);
        }
      }
    }
  }
}

TEST(Reduce, ShardsInBetween) {
  for (const Shape& s : kShards) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const std::size_t numel : {std::size_t{5}, std::size_t{333}}) {
        check(problem(s, algorithm, numel, {}, Dtype::kBF16));
        if (algorithm == Algorithm::kRing) continue;
        check(problem(s, algorithm, numel,
                      by_level(s.fan_outs, "int8:block=16", "int4:block=8")));
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
          check(p);
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
      const auto together = run(call, bucket);
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

TEST(Reduce, IntegersSumExactly) {
  for (const auto& fan_outs : kTopologies) {
    const Topology t = topology(fan_outs);
    if ((t.ranks() & (t.ranks() - 1)) != 0) continue;  // Means of halves stay exact.
    for (const Algorithm algorithm : kAlgorithms) {
      auto p = problem({fan_outs}, algorithm, 35);
      for (std::size_t rank = 0; rank < p.inputs.size(); ++rank) {
        for (std::size_t i = 0; i < 35; ++i) {
          p.inputs[rank][i] = static_cast<float>((rank * 31 + i * 17) % 101) - 50.0F;
        }
      }
      const auto found = run(Call::kAllReduce, {p});
      const auto mean = mean_of_group(p, 0);
      for (const auto& outs : found) {
        const auto y = outs[0].floats();
        for (std::size_t i = 0; i < 35; ++i) {
          EXPECT_EQ(static_cast<double>(y[i]), mean[i]) << text(p, 0);
        }
      }
    }
  }
}

TEST(Reduce, ConstantGradientsSurviveIntegerCodecs) {
  for (const char* spec : {"int8", "int4", "int8:block=32", "int4:block=16"}) {
    for (const float x : {1.0F, -1.0F}) {
      for (const auto& fan_outs : {std::vector<int>{3, 2}, {4, 2}, {2, 2, 3}}) {
        for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
          auto p = problem({fan_outs}, algorithm, 1000,
                           std::vector<std::string>(fan_outs.size(), spec));
          for (auto& in : p.inputs) in.assign(1000, x);
          for (const auto& outs : run(Call::kAllReduce, {p})) {
            for (const float y : outs[0].floats()) ASSERT_EQ(y, x) << text(p, 0);
          }
        }
      }
    }
  }
}

TEST(Reduce, MeansLieWithinTheirBound) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const auto& [wire, ulp] : {std::pair{Dtype::kF32, 0x1p-24}, {Dtype::kBF16, 0x1p-8}}) {
      const auto p = problem({{3, 4}}, algorithm, 1000, {}, wire);
      const auto found = run(Call::kAllReduce, {p});
      const auto mean = mean_of_group(p, 0);
      for (const auto& outs : found) {
        const auto y = outs[0].floats();
        // Inputs lie in [-1, 1): each of at most 2 N roundings errs by half an ulp of 1.
        for (std::size_t i = 0; i < y.size(); ++i) {
          EXPECT_NEAR(static_cast<double>(y[i]), mean[i], 24 * ulp);
        }
      }
    }
  }
}

TEST(Reduce, LargeHalvesDoNotOverflowAndSmallOnesAreCounted) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const float x : {2000.0F, 65504.0F, 6e-8F}) {
      auto p = problem({{8, 8}}, algorithm, 128, {}, Dtype::kF16);
      p.in = Dtype::kF16;
      p.out = Dtype::kF16;
      for (auto& in : p.inputs) in.assign(128, x);
      std::vector<std::uint64_t> underflow(64);
      const auto found = on_ranks(p.topology, [&](Comm& comm) {
        ReduceProblem mine = p;
        mine.options.underflow = &underflow[static_cast<std::size_t>(comm.rank())];
        return run(comm, Call::kAllReduce, {mine});
      });
      std::uint64_t total = 0;
      for (const std::uint64_t u : underflow) total += u;
      const bool lost = algorithm == Algorithm::kRing && x < 1e-6F;  // x/64 rounds to zero.
      EXPECT_EQ(total > 0, lost) << name(algorithm) << " " << x;
      const float mean = quant::round_to(Dtype::kF16, x);
      for (const auto& outs : found) {
        for (const float y : outs[0].floats()) {
          if (x < 1e-6F) {
            EXPECT_EQ(y, lost ? 0.0F : mean);
          } else {
            EXPECT_NEAR(y, mean, mean / 32) << name(algorithm);  // The ring rounds 63 times.
          }
        }
      }
    }
  }
}

TEST(Reduce, AMeanThatRoundsToZeroIsCounted) {
  auto p = problem({{2, 2}}, Algorithm::kAllToAll, 4, {}, Dtype::kF16);
  for (auto& in : p.inputs) in.assign(4, 0.0F);
  p.inputs[1][2] = 6e-8F;
  std::vector<std::uint64_t> underflow(4);
  on_ranks(p.topology, [&](Comm& comm) {
    ReduceProblem mine = p;
    mine.options.underflow = &underflow[static_cast<std::size_t>(comm.rank())];
    return run(comm, Call::kReduceScatter, {mine});
  });
  EXPECT_EQ(underflow, (std::vector<std::uint64_t>{0, 0, 1, 0}));
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

TEST(Reduce, NonFiniteInputsReachTheResult) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const float bad : {std::nanf(""), INFINITY}) {
      auto p = problem({{3, 2}}, algorithm, 60);
      if (algorithm != Algorithm::kRing) p.codecs = make_codecs({"int8", "int4"}, Dtype::kF32);
      p.inputs[4][17] = bad;
      for (const auto& outs : run(Call::kAllReduce, {p})) {
        EXPECT_FALSE(std::isfinite(outs[0].floats()[17]));
      }
    }
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
