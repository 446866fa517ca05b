// All-to-all, broadcast and scalars; variable-rate codecs in all collectives; what a call
// books.

#include <gtest/gtest.h>

#include <cmath>

#include "quant/error.h"
#include "quant/memory.h"
#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

using hierarchy::Phase;
using hierarchy::Transport;

quant::CodecPtr make(const std::string& spec) {
  if (spec.empty()) return nullptr;
  return spec == "non_zero" ? non_zero_codec() : quant::make_codec(spec);
}

/// What everyone decodes of a span that `sender` encodes.
std::vector<float> sent(const quant::Codec* codec, const Array& x, std::uint32_t sender,
                        std::uint32_t part, const Topology& t) {
  if (codec == nullptr) return x.floats();
  const quant::CodecContext context{
      .seed = 2,
      .role = quant::Role::kWeight,
      .sender = sender,
      .part = part,
      .level = static_cast<std::uint32_t>(oracle_level(t, t.ranks()))};
  std::vector<std::byte> wire(codec->max_wire_size(x.size()));
  wire.resize(codec->encode(x.view(), context, wire));
  std::vector<float> y(x.size());
  codec->decode(wire, quant::mut_view(y));
  return y;
}

/// Elements that a rank has for another; a third of them zero.
std::vector<float> block(int from, int to, std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = i % 3 == 1
               ? 0
               : value(static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), i);
  }
  return x;
}

TEST(AllToAll, BlocksArriveDecodedOnce) {
  for (const auto& fan_outs : kTopologies) {
    const Topology t = topology(fan_outs);
    for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      for (const char* spec : {"", "int8:block=8", "int4:block=8,rounding=stochastic",
                               "non_zero", "lossless", "topk:k=3,chunk=10"}) {
        for (const std::size_t n : {0, 1, 3, 35}) {
          const auto codec = make(spec);
          const auto found = on_ranks(t, [&](Comm& comm) {
            std::vector<float> in;
            for (int to = 0; to < comm.size(); ++to) {
              for (const float x : block(comm.rank(), to, n)) in.push_back(x);
            }
            std::vector<Array> out{Array(Dtype::kF32, in.size())};
            all_to_all(comm, {.algorithm = algorithm, .seed = 2},
                       {quant::view(in), out[0].mut(), n, codec.get()});
            return out;
          });
          for (int rank = 0; rank < t.ranks(); ++rank) {
            std::vector<float> want;
            for (int from = 0; from < t.ranks(); ++from) {
              const auto to = static_cast<std::uint32_t>(rank);
              for (const float x : sent(codec.get(), {Dtype::kF32, block(from, rank, n)},
                                        static_cast<std::uint32_t>(from), to, t)) {
                want.push_back(x);
              }
            }
            EXPECT_EQ(found[static_cast<std::size_t>(rank)][0].floats(), want)
                << name(algorithm) << " N=" << t.ranks() << " n=" << n << " codec=" << spec
                << " rank=" << rank;
          }
        }
      }
    }
  }
}

TEST(Broadcast, EveryoneEndsWithWhatTheRootSent) {
  for (const auto& fan_outs : kTopologies) {
    const Topology t = topology(fan_outs);
    for (const Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      for (const char* spec :
           {"", "int4:block=8,rounding=stochastic", "non_zero", "lossless"}) {
        for (int root = 0; root < t.ranks(); ++root) {
          const auto codec = make(spec);
          const std::size_t n = root % 4 == 3 ? 0 : 37;
          const auto found = on_ranks(t, [&](Comm& comm) {
            const auto x = comm.rank() == root ? block(root, 0, n) : std::vector<float>(n, NAN);
            std::vector<Array> data{Array(Dtype::kBF16, x)};
            broadcast(comm, {.algorithm = algorithm, .seed = 2}, root, data[0].mut(),
                      codec.get());
            return data;
          });
          const Array original(Dtype::kBF16, block(root, 0, n));
          const Array want(Dtype::kBF16,
                           sent(codec.get(), original, static_cast<std::uint32_t>(root), 0, t));
          for (const auto& data : found) {
            EXPECT_TRUE(data[0] == want) << name(algorithm) << " N=" << t.ranks()
                                         << " root=" << root << " codec=" << spec;
          }
        }
      }
    }
  }
}

TEST(Scalars, ArriveInRankOrderExactly) {
  for (const auto& fan_outs : kTopologies) {
    const Topology t = topology(fan_outs);
    for (const std::size_t k : {0, 1, 3}) {
      spawn(t, {.workers = 1}, [&](Transport& transport) {
        Comm comm{.transport = transport};
        std::vector<double> mine;
        std::vector<double> want;
        for (int rank = 0; rank < comm.size(); ++rank) {
          for (std::size_t i = 0; i < k; ++i) {
            want.push_back(1.0 / (rank + 3) + 1e-300 * static_cast<double>(i));
            if (rank == comm.rank()) mine.push_back(want.back());
          }
        }
        std::vector<double> all(want.size(), -1);
        gather_scalars(comm, Phase::kStep, quant::Role::kScalar, mine, all);
        EXPECT_EQ(all, want);
      });
    }
  }
}

TEST(Scalars, FoldInRankOrder) {
  const std::vector<double> x = {1e16, 1.0, 1.0, -1e16, 3.0, 1e-3};
  double sum = x[0];
  for (std::size_t i = 1; i < x.size(); ++i) sum += x[i];
  spawn(topology({3, 2}), {}, [&](Transport& transport) {
    Comm comm{.transport = transport};
    const double mine = x[static_cast<std::size_t>(comm.rank())];
    EXPECT_EQ(sum_scalar(comm, Phase::kStep, mine), sum);
    EXPECT_EQ(max_scalar(comm, Phase::kStep, mine), 1e16);
    EXPECT_EQ(max_scalar(comm, Phase::kStep, -mine), 1e16);
    EXPECT_TRUE(std::isnan(max_scalar(comm, Phase::kStep, comm.rank() == 3 ? NAN : mine)));
    EXPECT_EQ(comm.transport.ledger().collectives(), 4U);
  });
}

std::vector<float> sparse(int rank, std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto r = static_cast<std::uint64_t>(rank);
    if ((i + r) % 5 < r % 4) x[i] = value(3, r, i);
  }
  return x;
}

std::vector<std::pair<std::vector<int>, std::string>> variable_cases() {
  std::vector<std::pair<std::vector<int>, std::string>> cases;
  for (const auto& fan_outs : kTopologies) {
    for (const char* spec : {"non_zero", "lossless"}) cases.emplace_back(fan_outs, spec);
  }
  return cases;
}

TEST(VariableRate, GathersAreLossless) {
  for (const auto& [fan_outs, spec] : variable_cases()) {
    const auto codec = make(spec);
    const Topology t = topology(fan_outs);
    for (const Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      const std::vector<float> whole = sparse(3, 333);
      const auto found = on_ranks(t, [&](Comm& comm) {
        const Array shard(Dtype::kF32, cut(whole, comm.size(), comm.size(), comm.rank()));
        std::vector<Array> outs(2, Array(Dtype::kF32, 333));
        const hierarchy::GatherTensor tensors[] = {
            {0, 333, shard.view(), outs[0].mut(), codec.get()},
            {1, 333, shard.view(), outs[1].mut(), nullptr}};
        all_gather(comm, {.algorithm = algorithm}, tensors);
        return outs;
      });
      for (const auto& outs : found) {
        EXPECT_EQ(outs[0].floats(), whole) << name(algorithm) << " N=" << t.ranks();
        EXPECT_EQ(outs[1].floats(), whole) << name(algorithm) << " N=" << t.ranks();
      }
    }
  }
}

TEST(VariableRate, ReductionsEqualTheFixedRate) {
  // The codec is lossless, so it must give what fp32 on the wire gives.
  for (const auto& [fan_outs, spec] : variable_cases()) {
    const auto codec = make(spec);
    const Topology t = topology(fan_outs);
    for (const Algorithm algorithm : {Algorithm::kAllToAll, Algorithm::kHierarchical}) {
      const std::vector<const quant::Codec*> codecs(fan_outs.size(), codec.get());
      const auto reduce = [&](std::span<const quant::Codec* const> list) {
        return on_ranks(t, [&](Comm& comm) {
          const auto x = sparse(comm.rank(), 335);
          const auto n = cut(x, comm.size(), comm.size(), comm.rank()).size();
          std::vector<Array> outs(2, Array(Dtype::kF32, n));
          const hierarchy::ReduceTensor tensors[] = {
              {0, 335, quant::view(x), outs[0].mut(), list},
              {1, 335, quant::view(x), outs[1].mut(), {}}};
          reduce_scatter(comm, {.algorithm = algorithm}, {}, tensors);
          return outs;
        });
      };
      EXPECT_TRUE(reduce(codecs) == reduce({})) << name(algorithm) << " N=" << t.ranks();
    }
  }
}

TEST(VariableRate, EmptyPayloadsTravelAsTheirSizes) {
  // Zeros are no bytes at all: messages hold a u64 a piece, booked as metadata.
  const auto codec = quant::make_codec("lossless");
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kAllToAll, Algorithm::kHierarchical}) {
    spawn(topology({2, 2}), {.workers = 1}, [&](Transport& transport) {
      Comm comm{.transport = transport};
      const std::vector<float> zeros(40);
      std::vector<float> whole(40, NAN), shard(10, NAN), all(40, NAN);
      const CallOptions options{.algorithm = algorithm};
      const hierarchy::GatherTensor gather{0, 40, quant::view(zeros).slice(0, 10),
                                           quant::mut_view(whole), codec.get()};
      all_gather(comm, options, std::span(&gather, 1));
      broadcast(comm, options, 1, quant::mut_view(whole), codec.get());
      EXPECT_EQ(whole, zeros);
      if (algorithm != Algorithm::kRing) {
        const std::vector<const quant::Codec*> codecs(2, codec.get());
        const hierarchy::ReduceTensor reduce{0, 40, quant::view(zeros), quant::mut_view(shard),
                                             codecs};
        reduce_scatter(comm, options, {}, std::span(&reduce, 1));
        EXPECT_EQ(shard, std::vector<float>(10));
        all_to_all(comm, options, {quant::view(zeros), quant::mut_view(all), 10, codec.get()});
        EXPECT_EQ(all, zeros);
      }
      for (const auto& e : comm.transport.ledger().entries()) {
        EXPECT_EQ(e.sent.bytes, (quant::WireBytes{.scale = e.sent.bytes.scale}));
        EXPECT_EQ(e.sent.bytes.scale % 8, 0U);
      }
    });
  }
}

class PeakTracker final : public quant::MemoryTracker {
 public:
  void on_allocate(quant::MemoryKind kind, std::size_t bytes) override {
    EXPECT_EQ(kind, quant::MemoryKind::kComm);
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  void on_free(quant::MemoryKind, std::size_t bytes) noexcept override { now_ -= bytes; }
  std::size_t now_ = 0, peak_ = 0;
};

TEST(Comm, ScratchIsBookedAndGivenBack) {
  spawn(topology({2, 2}), {}, [](Transport& transport) {
    PeakTracker tracker;
    Comm comm{.transport = transport, .memory = &tracker};
    std::vector<float> x(4000, 1.0F);
    std::vector<float> out(1000);
    const auto int8 = quant::make_codec("int8");
    const std::vector<const quant::Codec*> codecs(2, int8.get());
    const hierarchy::ReduceTensor tensor{0, 4000, quant::view(x), quant::mut_view(out), codecs};
    reduce_scatter(comm, {}, {}, std::span(&tensor, 1));
    EXPECT_GE(tracker.peak_, 4000U);  // Hop 1 encodes all.
    EXPECT_EQ(tracker.now_, 0U);
    EXPECT_GT(comm.codec_seconds, 0);
    const double codec_seconds = comm.codec_seconds;
    const hierarchy::GatherTensor gather{0, 4000, quant::view(out), quant::mut_view(x),
                                         nullptr};
    tracker.peak_ = 0;
    all_gather(comm, {.algorithm = Algorithm::kRing}, std::span(&gather, 1));
    all_gather(comm, {.algorithm = Algorithm::kAllToAll}, std::span(&gather, 1));
    EXPECT_EQ(tracker.peak_, 0U);  // Straight into the output.
    EXPECT_EQ(comm.codec_seconds, codec_seconds);
    EXPECT_EQ(comm.transport.ledger().collectives(), 3U);
  });
}

TEST(Comm, HopsAreBookedApartAndAllReduceGoesOnCounting) {
  spawn(topology({2, 2}), {}, [](Transport& transport) {
    Comm comm{.transport = transport};
    std::vector<float> x(8, 1.0F);
    const hierarchy::ReduceTensor tensor{0, 8, quant::view(x), quant::mut_view(x), {}};
    const CallOptions options{.phase = Phase::kBackward, .role = quant::Role::kGradient};
    all_reduce(comm, options, {.wire = Dtype::kBF16}, std::span(&tensor, 1));
    const auto& entries = comm.transport.ledger().entries();
    ASSERT_EQ(entries.size(), 4U);
    for (const auto& e : entries) {
      const bool inner = e.key.call.hop == 0 || e.key.call.hop == 3;
      EXPECT_EQ(e.key.link, inner ? 0 : 1);
      EXPECT_EQ(e.key.call.collective, hierarchy::Collective::kAllReduce);
      EXPECT_EQ(e.key.call.phase, Phase::kBackward);
      EXPECT_EQ(e.key.call.role, quant::Role::kGradient);
      EXPECT_EQ(e.sent.messages, 1U);
      EXPECT_EQ(e.sent.bytes, (quant::WireBytes{.exact = inner ? 8U : 4U}));
    }
    EXPECT_EQ(comm.transport.ledger().collectives(), 1U);
  });
}

TEST(Refusals, NameWhatIsAllowed) {
  spawn(topology({2, 2}), {}, [](Transport& transport) {
    Comm comm{.transport = transport};
    std::vector<float> x(8);
    std::vector<float> y(8);
    const hierarchy::AllToAllArgs args{quant::view(x), quant::mut_view(y), 2, nullptr};
    EXPECT_THROW(all_to_all(comm, {.algorithm = Algorithm::kRing}, args), UsageError);
    EXPECT_THROW(all_to_all(comm, {.fine = 2}, args), UsageError);
    EXPECT_THROW(all_to_all(comm, {}, {args.in, args.out, 3, nullptr}), UsageError);
    EXPECT_THROW(broadcast(comm, {}, 4, quant::mut_view(x)), UsageError);
    EXPECT_THROW(broadcast(comm, {.coarse = 2}, 0, quant::mut_view(x)), UsageError);
    std::vector<double> all(3);
    EXPECT_THROW(
        gather_scalars(comm, Phase::kStep, quant::Role::kScalar, std::span(all).first(1), all),
        UsageError);
    all_to_all(comm, {}, args);
  });
}

}  // namespace
}  // namespace zeropp::test
