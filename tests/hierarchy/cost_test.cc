// The price of a call against what its ranks booked, to the byte and message, over a generated
// grid of algorithms, topologies, shapes and codecs.

#include "hierarchy/cost.h"

#include <gtest/gtest.h>

#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

using hierarchy::Cost;
using hierarchy::CostTensor;
using hierarchy::Transport;

// Fewer than kTopologies: every pair of moduli multiplies them.
const std::vector<std::vector<int>> kFew = {{1},    {2},       {3, 2}, {4, 2},
                                            {3, 4}, {2, 2, 3}, {1, 4}};
const std::vector<std::vector<std::size_t>> kBuckets = {{1},   {5},        {64},
                                                        {131}, {3, 0, 47}, {1000, 7}};
const std::vector<std::string> kSpecs = {
    "",     "bf16",     "int8",       "int8:block=16", "int4:block=16",
    "int4", "non_zero", "delta|int4", "lossless",      "topk:k=3,chunk=16"};
int cases = 0;

quant::CodecPtr make(const std::string& spec) {
  if (spec.empty()) return nullptr;
  return spec == "non_zero" ? non_zero_codec() : quant::make_codec(spec);
}
bool is_variable(const std::string& spec) {
  const auto codec = make(spec);
  return codec && !codec->traits().fixed_rate;
}

/// Every pair coarse | fine | N.
std::vector<std::pair<int, int>> moduli(int world) {
  std::vector<std::pair<int, int>> pairs;
  for (int fine = 1; fine <= world; ++fine) {
    for (int coarse = 1; coarse <= fine; ++coarse) {
      if (world % fine == 0 && fine % coarse == 0) pairs.emplace_back(coarse, fine);
    }
  }
  return pairs;
}

/// One call on one rank: what it booked since `before` against its price.
void compare(Comm& comm, const hierarchy::Ledger& before, const Cost& cost, bool upper_bound,
             const std::string& text) {
  const hierarchy::Ledger booked = comm.transport.ledger().since(before);
  for (int link = 0; link < comm.transport.topology().levels(); ++link) {
    const hierarchy::Traffic found = booked.sent_on(link, true);
    const auto priced = cost.by_link.find(link);
    const hierarchy::Traffic want =
        priced == cost.by_link.end() ? hierarchy::Traffic{} : priced->second;
    if (upper_bound) {
      EXPECT_LE(found.bytes.total(), want.bytes.total()) << text << " link " << link;
      EXPECT_EQ(found.messages, want.messages) << text << " link " << link;
    } else {
      EXPECT_TRUE(found == want) << text << " link " << link << " bytes " << found.bytes.total()
                                 << " priced " << want.bytes.total() << " messages "
                                 << found.messages << " priced " << want.messages;
    }
  }
}

std::string describe(const CallOptions& o, int world, const std::string& codec,
                     const std::vector<std::size_t>& bucket) {
  std::string sizes;
  for (const std::size_t n : bucket) sizes += std::to_string(n) + " ";
  return fmt::format("{} N={} {}:{} codec '{}' numel {}", name(o.algorithm), world, o.coarse,
                     o.fine, codec, sizes);
}

void gathers(Comm& comm, const CallOptions& o, const std::string& spec,
             const std::vector<std::size_t>& bucket) {
  const auto codec = make(spec);
  std::vector<CostTensor> shapes;
  std::vector<hierarchy::GatherTensor> tensors;
  std::vector<Array> arrays;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    const hierarchy::ChunkMap map{bucket[i], comm.size()};
    // The second tensor of a bucket travels exact, in another dtype.
    const quant::Codec* used = i == 1 ? nullptr : codec.get();
    const Dtype dtype = i == 1 ? Dtype::kBF16 : Dtype::kF32;
    arrays.emplace_back(dtype, std::vector<float>(shard_elems(map, o.fine, comm.rank())));
    arrays.emplace_back(dtype, shard_elems(map, o.coarse, comm.rank()));
    shapes.push_back({.numel = bucket[i], .dtype = dtype, .gather_codec = used, .codecs = {}});
  }
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    tensors.push_back({static_cast<std::uint32_t>(i), bucket[i], arrays[2 * i].view(),
                       arrays[2 * i + 1].mut(), shapes[i].gather_codec});
  }
  const hierarchy::Ledger before = comm.transport.ledger();
  all_gather(comm, o, tensors);
  compare(comm, before, all_gather_cost(comm.transport.topology(), comm.rank(), o, shapes),
          is_variable(spec), "all_gather " + describe(o, comm.size(), spec, bucket));
}

void reductions(Comm& comm, const CallOptions& o, const std::vector<std::string>& specs,
                const std::vector<std::size_t>& bucket, bool all) {
  const Topology& t = comm.transport.topology();
  std::vector<quant::CodecPtr> owned;
  std::vector<const quant::Codec*> codecs;
  bool variable = false;
  for (int level = 0; level < t.levels() && !specs.empty(); ++level) {
    owned.push_back(make(specs[static_cast<std::size_t>(level) % specs.size()]));
    codecs.push_back(owned.back().get());
    variable |= codecs.back() != nullptr && !codecs.back()->traits().fixed_rate;
  }
  const hierarchy::ReduceOptions reduce{.wire = Dtype::kBF16};
  std::vector<CostTensor> shapes;
  std::vector<hierarchy::ReduceTensor> tensors;
  std::vector<Array> arrays;
  for (const std::size_t numel : bucket) {
    const hierarchy::ChunkMap map{numel, comm.size()};
    arrays.emplace_back(Dtype::kF32,
                        std::vector<float>(shard_elems(map, o.coarse, comm.rank())));
    arrays.emplace_back(Dtype::kF32, shard_elems(map, all ? o.coarse : o.fine, comm.rank()));
  }
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    const std::span<const quant::Codec* const> used =
        i == 1 ? std::span<const quant::Codec* const>{} : codecs;
    shapes.push_back({.numel = bucket[i], .codecs = used});
    tensors.push_back({static_cast<std::uint32_t>(i), bucket[i], arrays[2 * i].view(),
                       arrays[2 * i + 1].mut(), used});
  }
  const hierarchy::Ledger before = comm.transport.ledger();
  (all ? hierarchy::all_reduce : hierarchy::reduce_scatter)(comm, o, reduce, tensors);
  const Cost cost = all ? all_reduce_cost(t, comm.rank(), o, reduce, shapes)
                        : reduce_scatter_cost(t, comm.rank(), o, reduce, shapes);
  compare(comm, before, cost, variable,
          (all ? "all_reduce " : "reduce_scatter ") +
              describe(o, comm.size(), specs.empty() ? "" : specs.back(), bucket));
}

TEST(Cost, AllGatherEqualsTheLedger) {
  for (const auto& fan_outs : kFew) {
    spawn(topology(fan_outs), {.workers = 1}, [](Transport& transport) {
      Comm comm{.transport = transport};
      for (const auto& [coarse, fine] : moduli(comm.size())) {
        for (const Algorithm algorithm : kAlgorithms) {
          const CallOptions o{.algorithm = algorithm, .coarse = coarse, .fine = fine};
          for (const auto& spec : kSpecs) {
            for (const auto& bucket : kBuckets) {
              gathers(comm, o, spec, bucket);
              if (comm.rank() == 0) ++cases;
            }
          }
        }
      }
    });
  }
  EXPECT_GE(cases, 2000);
}

TEST(Cost, ReductionsEqualTheLedger) {
  const std::vector<std::vector<std::string>> lists = {
      {},
      {"int8", "int4"},
      {"int8:block=16"},
      {"", "int4:block=16"},
      {"non_zero"},
      {"lossless:dtype=bf16", "topk:k=3,chunk=16"}};
  for (const auto& fan_outs : kFew) {
    spawn(topology(fan_outs), {.workers = 1}, [&](Transport& transport) {
      Comm comm{.transport = transport};
      for (const auto& [coarse, fine] : moduli(comm.size())) {
        for (const Algorithm algorithm : kAlgorithms) {
          const CallOptions o{.algorithm = algorithm, .coarse = coarse, .fine = fine};
          for (const auto& specs : lists) {
            if (algorithm == Algorithm::kRing && !specs.empty()) continue;
            for (const auto& bucket : kBuckets) {
              reductions(comm, o, specs, bucket, false);
              reductions(comm, o, specs, bucket, true);
            }
          }
        }
      }
    });
  }
}

TEST(Cost, AllToAllBroadcastAndScalarsEqualTheLedger) {
  for (const auto& fan_outs : kFew) {
    spawn(topology(fan_outs), {.workers = 1}, [](Transport& transport) {
      Comm comm{.transport = transport};
      const Topology& t = transport.topology();
      for (const Algorithm algorithm : kAlgorithms) {
        const CallOptions o{.algorithm = algorithm};
        for (const auto& spec : kSpecs) {
          const auto codec = make(spec);
          if (codec && codec->traits().difference) continue;  // For gathers alone.
          for (const std::size_t n : {0, 1, 35}) {
            const CostTensor shape{.numel = n, .gather_codec = codec.get(), .codecs = {}};
            std::vector<float> x(n);
            for (int root = 0; root < comm.size(); ++root) {
              const hierarchy::Ledger before = transport.ledger();
              broadcast(comm, o, root, quant::mut_view(x), codec.get());
              compare(comm, before, broadcast_cost(t, comm.rank(), o, root, shape),
                      is_variable(spec), "broadcast");
            }
            if (algorithm == Algorithm::kRing) continue;
            std::vector<float> in(n * static_cast<std::size_t>(comm.size()));
            std::vector<float> out(in.size());
            const hierarchy::Ledger before = transport.ledger();
            all_to_all(comm, o, {quant::view(in), quant::mut_view(out), n, codec.get()});
            compare(comm, before, all_to_all_cost(t, comm.rank(), o, shape), is_variable(spec),
                    "all_to_all");
          }
        }
      }
      for (const std::size_t k : {0, 1, 5}) {
        const std::vector<double> mine(k, 1.0);
        std::vector<double> all(k * static_cast<std::size_t>(comm.size()));
        const hierarchy::Ledger before = transport.ledger();
        gather_scalars(comm, hierarchy::Phase::kStep, quant::Role::kScalar, mine, all);
        compare(comm, before, gather_scalars_cost(t, comm.rank(), k), false, "scalars");
      }
    });
  }
}

/// The shares of a reduce-scatter that leave a node of 8 of 64 ranks, in units of the tensor.
TEST(Cost, CrossNodeBytesOfOneReduceScatter) {
  const Topology t = Topology::two_level(8, 8);
  const std::size_t numel = 64 * 1024;
  const CostTensor tensor{.numel = numel, .codecs = {}};
  const auto share = [&](Algorithm algorithm) {
    std::uint64_t bytes = 0;
    for (int rank = 0; rank < 8; ++rank) {
      const Cost cost =
          reduce_scatter_cost(t, rank, {.algorithm = algorithm}, {}, std::span(&tensor, 1));
      const auto net = cost.by_link.find(1);
      if (net != cost.by_link.end()) bytes += net->second.bytes.total();
    }
    return static_cast<double>(bytes) / (4.0 * numel);
  };
  EXPECT_DOUBLE_EQ(share(Algorithm::kRing), 63.0 / 64);
  EXPECT_DOUBLE_EQ(share(Algorithm::kHierarchical), 7.0 / 8);
  EXPECT_DOUBLE_EQ(share(Algorithm::kAllToAll), 7.0);
}

TEST(Cost, StepsAreTheExchangesInSequence) {
  const Topology t = topology({2, 2, 3});
  const CostTensor tensor{.numel = 100, .codecs = {}};
  const auto steps = [&](Algorithm a) {
    return all_reduce_cost(t, 0, {.algorithm = a}, {}, std::span(&tensor, 1)).steps;
  };
  EXPECT_EQ(steps(Algorithm::kRing), 22);
  EXPECT_EQ(steps(Algorithm::kAllToAll), 2);
  EXPECT_EQ(steps(Algorithm::kHierarchical), 6);
  EXPECT_EQ(broadcast_cost(t, 3, {.algorithm = Algorithm::kRing}, 2, tensor).steps, 11);
  EXPECT_EQ(gather_scalars_cost(t, 0, 1).steps, 3);
}

}  // namespace
}  // namespace zeropp::test
