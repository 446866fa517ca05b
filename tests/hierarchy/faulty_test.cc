// Every collective on transports that break on purpose: the same bits and counts where a fault
// is harmless, one error that names rank, collective and sequence on every rank where it is
// not.
#include "hierarchy/transport/faulty.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "hierarchy/transport/virtual.h"
#include "quant/error.h"
#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

using hierarchy::Fault;
using hierarchy::FaultOptions;
using hierarchy::Faulty;
using hierarchy::Ledger;
using hierarchy::Transport;
using testing::AnyOf;
using testing::HasSubstr;

constexpr std::size_t kNumel = 1003;  // Odd chunks, and int4 with half a byte to spare.

Array filled(std::uint64_t seed, int rank, std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = value(seed, static_cast<std::uint64_t>(rank), i);
  return {Dtype::kF32, x};
}

const quant::Codec* codec_of(const std::string& spec) {
  static const quant::CodecPtr int8 = quant::make_codec("int8:block=64");
  static const quant::CodecPtr int4 = quant::make_codec("int4:block=64");
  static const quant::CodecPtr variable = non_zero_codec();
  if (spec == "int8") return int8.get();
  if (spec == "int4") return int4.get();
  return spec == "variable" ? variable.get() : nullptr;
}

/// One way to call one collective.
struct Case {
  const char* collective;
  Algorithm algorithm;
  std::string codec;
};

std::vector<Array> reduce(Comm& comm, const Case& c, Call call) {
  const Topology& t = comm.transport.topology();
  Shape shape;
  for (int i = 0; i < t.levels(); ++i) shape.fan_outs.push_back(t.level(i).fan_out);
  const std::vector<std::string> specs(
      c.codec.empty() ? 0 : static_cast<std::size_t>(t.levels()), c.codec + ":block=64");
  return run(comm, call, {problem(shape, c.algorithm, kNumel, specs)});
}

std::vector<Array> run_case(Comm& comm, const Case& c) {
  const std::string what = c.collective;
  const CallOptions options{.algorithm = c.algorithm, .seed = 9, .step = 2};
  const auto world = static_cast<std::size_t>(comm.size());
  if (what == "reduce_scatter") return reduce(comm, c, Call::kReduceScatter);
  if (what == "all_reduce") return reduce(comm, c, Call::kAllReduce);
  if (what == "all_gather") {
    const Array whole = filled(1, 0, kNumel);
    const Array shard(Dtype::kF32, cut(whole.floats(), comm.size(), comm.size(), comm.rank()));
    std::vector<Array> out = {Array(Dtype::kF32, kNumel)};
    const hierarchy::GatherTensor tensor{.tensor = 3,
                                         .numel = kNumel,
                                         .shard = shard.view(),
                                         .out = out[0].mut(),
                                         .codec = codec_of(c.codec)};
    all_gather(comm, options, std::span(&tensor, 1));
    return out;
  }
  if (what == "all_to_all") {
    const Array in = filled(5, comm.rank(), 101 * world);
    std::vector<Array> out = {Array(Dtype::kF32, in.size())};
    all_to_all(comm, options,
               {.in = in.view(), .out = out[0].mut(), .n = 101, .codec = codec_of(c.codec)});
    return out;
  }
  if (what == "broadcast") {
    std::vector<Array> out = {filled(6, comm.rank(), 701)};
    broadcast(comm, options, 1, out[0].mut(), codec_of(c.codec));
    return out;
  }
  std::vector<double> all(world);
  const double mine = 0.1 * (comm.rank() + 1);
  gather_scalars(comm, hierarchy::Phase::kOther, quant::Role::kScalar, {&mine, 1}, all);
  return {Array(Dtype::kF32, std::vector<float>(all.begin(), all.end()))};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Algorithm a : kAlgorithms) {
    for (const char* codec : {"", "int8", "int4", "variable"}) {
      const std::string spec = codec;
      const bool ring = a == Algorithm::kRing;
      for (const char* what : {"reduce_scatter", "all_reduce"}) {
        if (spec != "variable" && (!ring || spec.empty())) all.push_back({what, a, spec});
      }
      all.push_back({"all_gather", a, spec});
      if (!ring) all.push_back({"all_to_all", a, spec});
      all.push_back({"broadcast", a, spec});
    }
  }
  all.push_back({"gather_scalars", Algorithm::kHierarchical, ""});
  return all;
}

std::string text_of(const Case& c, Fault fault, const Topology& t) {
  return fmt::format("{} {} '{}' {} on {} levels", c.collective, name(c.algorithm), c.codec,
                     name(fault), t.levels());
}

struct Outcome {
  std::vector<Array> arrays;
  Ledger meant, sent;
};

/// What each rank gets; the collective runs twice, so that later sequences are reached.
std::vector<Outcome> outcomes(const Topology& t, const Case& c, const FaultOptions& options,
                              std::atomic<int>* failed = nullptr) {
  // A dropped rank is found by the timeout alone.
  const int patience = options.fault == Fault::kDrop ? 60 : 10'000;
  const hierarchy::VirtualOptions launch{.workers = 1,
                                         .timeout = std::chrono::milliseconds(patience)};
  return spawn<Outcome>(t, launch, [&](Transport& transport) {
    Faulty faulty(transport, options);
    Comm comm{faulty};
    Outcome out;
    try {
      transport.barrier();  // All have begun.
      for (int i = 0; i < 2; ++i) {
        for (Array& a : run_case(comm, c)) out.arrays.push_back(std::move(a));
      }
      faulty.barrier();
    } catch (const std::exception&) {
      if (failed != nullptr) ++*failed;
      throw;
    }
    out.meant = faulty.ledger();
    out.sent = transport.ledger();
    return out;
  });
}

void expect_equal(const Ledger& a, const Ledger& b) {
  ASSERT_EQ(a.entries().size(), b.entries().size());
  for (std::size_t i = 0; i < a.entries().size(); ++i) {
    EXPECT_EQ(a.entries()[i].key, b.entries()[i].key);
    EXPECT_EQ(a.entries()[i].sent, b.entries()[i].sent);
    EXPECT_EQ(a.entries()[i].received, b.entries()[i].received);
  }
}

const std::vector<std::vector<int>> kShapes = {{3}, {2, 2}, {3, 2}};

TEST(Faulty, DelayReorderAndPoisonChangeNoBitAndNoCount) {
  for (const auto& shape : kShapes) {
    const Topology t = topology(shape);
    for (const Case& c : cases()) {
      const auto expected = outcomes(t, c, {});
      for (const Fault fault : {Fault::kDelay, Fault::kReorder, Fault::kPoison}) {
        SCOPED_TRACE(text_of(c, fault, t));
        const auto found = outcomes(
            t, c, {.fault = fault, .seed = 5, .max_delay = std::chrono::microseconds(30)});
        for (std::size_t r = 0; r < expected.size(); ++r) {
          EXPECT_TRUE(found[r].arrays == expected[r].arrays) << "rank " << r << ": other bits";
          expect_equal(found[r].meant, expected[r].meant);
          expect_equal(found[r].sent, expected[r].meant);
        }
      }
    }
  }
}

/// The error of the run with that fault on rank 1, which every rank must get.
std::string error_of_all(const Topology& t, const Case& c, Fault fault) {
  std::atomic<int> failed{0};
  try {
    outcomes(t, c, {.fault = fault, .rank = 1, .sequence = 2}, &failed);
  } catch (const TransportError& e) {
    // A dropped rank goes its own way and may find nothing wrong.
    EXPECT_GE(failed, t.ranks() - (fault == Fault::kDrop ? 1 : 0));
    return e.what();
  }
  return "";
}

TEST(Faulty, AThrowATruncatedMessageAndADroppedRankEndEveryRank) {
  for (const auto& shape : kShapes) {
    const Topology t = topology(shape);
    for (const Case& c : cases()) {
      for (const Fault fault : {Fault::kThrow, Fault::kTruncate, Fault::kDrop}) {
        // Each failure by timeout takes as long as one: a few of them tell.
        const bool rare = fault == Fault::kDrop;
        if (rare && (shape.size() != 2 || shape[0] != 2 || c.codec == "int4")) continue;
        SCOPED_TRACE(text_of(c, fault, t));
        const std::string text = error_of_all(t, c, fault);
        // Who receives less than a frame says does not know who sent it.
        const bool framed = fault == Fault::kTruncate && c.codec == "variable";
        EXPECT_THAT(text, HasSubstr(framed ? "rank " : "rank 1"));
        EXPECT_THAT(text, HasSubstr("sequence"));
        EXPECT_THAT(text, HasSubstr(c.collective));
        if (fault == Fault::kThrow) {
          EXPECT_THAT(text, HasSubstr("injected: rank 1 throws in"));
        }
        if (fault == Fault::kTruncate) {
          EXPECT_THAT(
              text, AnyOf(HasSubstr("mismatch"), HasSubstr("piece of"), HasSubstr("frame of")));
        }
      }
    }
  }
}

TEST(Faulty, NanArrivesAsNanOrEndsTheRun) {
  for (const auto& shape : kShapes) {
    const Topology t = topology(shape);
    for (const Case& c : cases()) {
      SCOPED_TRACE(text_of(c, Fault::kNan, t));
      std::vector<Outcome> found;
      try {
        found = outcomes(t, c, {.fault = Fault::kNan, .rank = 1, .sequence = 1});
      } catch (const TransportError&) {
        EXPECT_EQ(c.codec, "variable");  // Its sizes are no sizes any more.
        continue;
      }
      bool seen = false;
      for (const Outcome& o : found) {
        for (const Array& a : o.arrays) {
          const auto floats = a.floats();
          seen |=
              std::any_of(floats.begin(), floats.end(), [](float x) { return std::isnan(x); });
        }
      }
      EXPECT_TRUE(seen);
    }
  }
}

/// int8 whose encode throws on one rank in the second call.
class Throwing final : public quant::Codec {
 public:
  Throwing(int rank, std::atomic<int>& calls) : rank_(rank), calls_(calls) {}
  const std::string& spec() const override { return inner().spec(); }
  quant::CodecTraits traits() const override { return inner().traits(); }
  quant::WireBytes wire_bytes(std::size_t n) const override { return inner().wire_bytes(n); }
  std::size_t encode(quant::ConstView x, const quant::CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    if (static_cast<int>(ctx.sender) == rank_ && ++calls_ > 20) {
      throw std::runtime_error("encode is broken");
    }
    return inner().encode(x, ctx, wire);
  }
  void decode(std::span<const std::byte> wire, quant::MutView out) const override {
    inner().decode(wire, out);
  }

 private:
  static const quant::Codec& inner() { return *codec_of("int8"); }
  int rank_;
  std::atomic<int>& calls_;
};

TEST(Faulty, AThrowInsideEncodeOnOneRankEndsAllOfThem) {
  for (const auto& shape : kShapes) {
    const Topology t = topology(shape);
    std::atomic<int> calls{0}, failed{0};
    const Throwing codec(2, calls);
    const std::vector<const quant::Codec*> codecs(static_cast<std::size_t>(t.levels()), &codec);
    std::string text;
    try {
      spawn(t, {.workers = 1}, [&](Transport& transport) {
        Comm comm{transport};
        transport.barrier();
        const Array in = filled(1, comm.rank(), kNumel);
        Array out(Dtype::kF32, cut(in.floats(), comm.size(), comm.size(), comm.rank()));
        const hierarchy::ReduceTensor tensor{
            .numel = kNumel, .in = in.view(), .out = out.mut(), .codecs = codecs};
        try {
          for (int i = 0; i < 50; ++i) reduce_scatter(comm, {}, {}, std::span(&tensor, 1));
        } catch (const std::exception&) {
          ++failed;
          throw;
        }
      });
    } catch (const TransportError& e) {
      text = e.what();
    }
    EXPECT_THAT(text, HasSubstr("[virtual] rank 2 failed"));
    EXPECT_THAT(text, HasSubstr("reduce_scatter"));
    EXPECT_THAT(text, HasSubstr("sequence"));
    EXPECT_THAT(text, HasSubstr("encode is broken"));
    EXPECT_EQ(failed, t.ranks());
  }
}

/// What rank 1 does differently, and what the error must say.
struct Other {
  const char* says;
  std::function<void(CallOptions&, hierarchy::ReduceOptions&, std::vector<const quant::Codec*>&,
                     std::size_t& numel)>
      change;
};

TEST(Mismatch, CountDtypeCodecAndGroupAreCompared) {
  static const quant::CodecPtr plain = quant::make_codec("int8:block=64");
  static const quant::CodecPtr deepspeed = quant::make_codec("int8:block=64,scheme=deepspeed");
  const std::vector<Other> others = {
      {"count: expected",  // One element less in the last chunk: other messages are equal.
       [](auto&, auto&, auto&, std::size_t& numel) { numel -= 1; }},
      {"tensors and codecs: expected those with hash",
       [](auto&, auto&, auto& codecs, auto&) {
         for (auto& c : codecs) c = deepspeed.get();
       }},
      {"dtype: expected fp32, found bf16",
       [](auto&, hierarchy::ReduceOptions& r, auto& codecs, auto&) {
         r.wire = Dtype::kBF16;
         (void)codecs;
       }},
  };
  const Topology t = topology({2, 2});
  for (const Other& other : others) {
    SCOPED_TRACE(other.says);
    std::string text = "no error";
    try {
      spawn(t, {.workers = 1}, [&](Transport& transport) {
        Comm comm{transport};
        CallOptions options{.algorithm = Algorithm::kHierarchical};
        hierarchy::ReduceOptions reduce;
        std::vector<const quant::Codec*> codecs(2, plain.get());
        std::size_t numel = kNumel;
        if (comm.rank() == 1) other.change(options, reduce, codecs, numel);
        const Array in = filled(1, comm.rank(), numel);
        Array out(Dtype::kF32, cut(in.floats(), comm.size(), comm.size(), comm.rank()));
        const hierarchy::ReduceTensor tensor{
            .numel = numel, .in = in.view(), .out = out.mut(), .codecs = codecs};
        reduce_scatter(comm, options, reduce, std::span(&tensor, 1));
      });
    } catch (const TransportError& e) {
      text = e.what();
    }
    EXPECT_THAT(text, HasSubstr("mismatch"));
    EXPECT_THAT(text,
                AnyOf(HasSubstr(other.says), HasSubstr("dtype: expected bf16, found fp32")));
  }
}

}  // namespace
}  // namespace zeropp::test
