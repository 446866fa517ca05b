// One rank of several, started by mpirun: every process runs the same tests together, and holds
// its own results and ledger against those of the same rank among virtual ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "hierarchy/transport/faulty.h"
#include "hierarchy/transport/mpi.h"
#include "hierarchy/transport/virtual.h"
#include "quant/error.h"
#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

using hierarchy::CallInfo;
using hierarchy::Ledger;
using hierarchy::MpiOptions;
using hierarchy::MpiSession;
using hierarchy::Pending;
using hierarchy::RecvOp;
using hierarchy::SendOp;
using hierarchy::Transport;
using testing::HasSubstr;

const MpiSession* session = nullptr;

using Body = std::function<std::vector<Array>(Comm&)>;

struct Outcome {
  std::vector<Array> arrays;
  Ledger ledger;
};

Outcome outcome_of(Transport& transport, const Body& body) {
  Comm comm{transport};
  Outcome outcome{.arrays = body(comm), .ledger = {}};
  outcome.ledger = transport.ledger();
  return outcome;
}

/// Runs the body on processes and on virtual ranks.
void expect_as_virtual(const Topology& t, const MpiOptions& options, const Body& body) {
  Outcome mpi;
  run_mpi(t, options, [&](Transport& transport) { mpi = outcome_of(transport, body); });
  Outcome expected;
  run_virtual(t, launch_options({.workers = 1}), [&](Transport& transport) {
    Outcome mine = outcome_of(transport, body);
    if (transport.rank() == session->rank()) expected = std::move(mine);
  });
  EXPECT_TRUE(mpi.arrays == expected.arrays) << "other bits";
  ASSERT_EQ(mpi.ledger.entries().size(), expected.ledger.entries().size());
  for (std::size_t i = 0; i < expected.ledger.entries().size(); ++i) {
    const auto& a = mpi.ledger.entries()[i];
    const auto& b = expected.ledger.entries()[i];
    EXPECT_EQ(a.key, b.key);
    EXPECT_EQ(a.sent, b.sent);
    EXPECT_EQ(a.received, b.received);
  }
  EXPECT_EQ(mpi.ledger.collectives(), expected.ledger.collectives());
}

/// All ranks in one node, and the ways to cut this many ranks in two levels.
std::vector<Topology> topologies() {
  std::vector<Topology> all = {topology({session->size()})};
  for (int inner = 2; inner < session->size(); ++inner) {
    if (session->size() % inner == 0) all.push_back(topology({inner, session->size() / inner}));
  }
  return all;
}

/// Odd enough that chunks differ in size.
constexpr std::size_t kNumel = 5003;

Array filled(std::uint64_t seed, int rank, std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = value(seed, static_cast<std::uint64_t>(rank), i);
  return {Dtype::kF32, x};
}

std::vector<Array> reduce(Comm& comm, Call call, Algorithm algorithm, const std::string& spec) {
  const Topology& t = comm.transport.topology();
  Shape shape;
  for (int i = 0; i < t.levels(); ++i) shape.fan_outs.push_back(t.level(i).fan_out);
  const std::vector<std::string> specs(spec.empty() ? 0 : static_cast<std::size_t>(t.levels()),
                                       spec);
  return run(comm, call, {problem(shape, algorithm, kNumel, specs)});
}

std::vector<Array> gather(Comm& comm, Algorithm algorithm, const quant::Codec* codec) {
  const Array whole = filled(1, 0, kNumel);
  const Array shard(Dtype::kF32, cut(whole.floats(), comm.size(), comm.size(), comm.rank()));
  std::vector<Array> out = {Array(Dtype::kF32, kNumel)};
  const hierarchy::GatherTensor tensor{
      .tensor = 3, .numel = kNumel, .shard = shard.view(), .out = out[0].mut(), .codec = codec};
  all_gather(comm, {.algorithm = algorithm, .seed = 9, .step = 2}, std::span(&tensor, 1));
  return out;
}

TEST(MpiRanks, ReductionsGiveTheVirtualBits) {
  for (const Topology& t : topologies()) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const Call call : {Call::kReduceScatter, Call::kAllReduce}) {
        for (const char* spec : {"", "int8:block=64", "int4:block=64,rounding=stochastic"}) {
          if (algorithm == Algorithm::kRing && *spec != '\0') continue;
          SCOPED_TRACE(fmt::format("{} levels, {}, {}", t.levels(), name(algorithm), spec));
          expect_as_virtual(t, {},
                            [&](Comm& comm) { return reduce(comm, call, algorithm, spec); });
        }
      }
    }
  }
}

TEST(MpiRanks, GathersGiveTheVirtualBits) {
  const auto int8 = quant::make_codec("int8:block=64");
  const auto variable = non_zero_codec();
  for (const Topology& t : topologies()) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const quant::Codec* codec :
           {static_cast<const quant::Codec*>(nullptr), int8.get(), variable.get()}) {
        SCOPED_TRACE(fmt::format("{} levels, {}", t.levels(), name(algorithm)));
        expect_as_virtual(t, {}, [&](Comm& comm) { return gather(comm, algorithm, codec); });
      }
    }
  }
}

TEST(MpiRanks, TheOtherCollectivesGiveTheVirtualBits) {
  const auto int8 = quant::make_codec("int8:block=64");
  for (const Topology& t : topologies()) {
    expect_as_virtual(t, {}, [&](Comm& comm) {
      const std::size_t n = 333;
      const auto all = static_cast<std::size_t>(comm.size());
      std::vector<Array> out = {Array(Dtype::kF32, n * all), filled(6, comm.rank(), 700),
                                Array(Dtype::kF32, all)};
      const Array blocks = filled(5, comm.rank(), n * all);
      all_to_all(comm, {},
                 {.in = blocks.view(), .out = out[0].mut(), .n = n, .codec = int8.get()});
      comm.transport.barrier();
      broadcast(comm, {}, comm.size() - 1, out[1].mut());
      std::vector<double> scalars(all);
      const double mine = 0.1 * (comm.rank() + 1);
      gather_scalars(comm, hierarchy::Phase::kOther, quant::Role::kScalar, {&mine, 1}, scalars);
      const std::vector<float> floats(scalars.begin(), scalars.end());
      out[2] = Array(Dtype::kF32, floats);
      return out;
    });
  }
}

TEST(MpiRanks, LongMessagesTravelInPieces) {
  const MpiOptions pieces{.piece_bytes = 97};
  const auto variable = non_zero_codec();
  const Topology t = topology({session->size()});
  expect_as_virtual(t, pieces,
                    [&](Comm& comm) { return gather(comm, Algorithm::kRing, nullptr); });
  expect_as_virtual(t, pieces, [&](Comm& comm) {
    return gather(comm, Algorithm::kAllToAll, variable.get());
  });
}

/// Rank 0 sends rank 1 a message of each size; rank 1 waits for them in reverse.
std::vector<Array> out_of_order(Comm& comm, const std::vector<std::size_t>& sizes) {
  const CallInfo call{.collective = hierarchy::Collective::kOther};
  std::vector<Array> arrays;
  std::vector<Pending> pending;
  for (std::size_t i = 0; i < sizes.size(); ++i) arrays.push_back(filled(i, 7, sizes[i]));
  for (const Array& a : arrays) {
    const SendOp send{.peer = 1, .data = a.bytes, .bytes = {.exact = a.bytes.size()}};
    const RecvOp receive{.peer = 0, .bytes = a.bytes.size() + 8, .variable = true};
    if (comm.rank() == 0) pending.push_back(comm.transport.exchange(call, {&send, 1}, {}));
    if (comm.rank() == 1) pending.push_back(comm.transport.exchange(call, {}, {&receive, 1}));
  }
  std::vector<Array> got;
  if (comm.rank() == 1) {
    for (std::size_t i = sizes.size(); i-- > 0;) {
      pending[i].wait();
      const auto bytes = pending[i].received(0);
      Array a;
      a.bytes.assign(bytes.begin(), bytes.end());
      EXPECT_EQ(a.bytes, arrays[i].bytes);
      got.push_back(std::move(a));
    }
  }
  for (Pending& p : pending) p.release();
  return got;
}

TEST(MpiRanks, ExchangesMayBeWaitedForInAnyOrder) {
  expect_as_virtual(topology({session->size()}), {}, [&](Comm& comm) {
    return out_of_order(comm, {3, 0, 40'000, 1, 5000, 0});
  });
}

TEST(MpiRanks, ATopologyOfAnotherSizeIsRefused) {
  const Topology t = topology({session->size() + 1});
  try {
    run_mpi(t, {}, [](Transport&) { ADD_FAILURE() << "ran"; });
    FAIL() << "accepted";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), HasSubstr(fmt::format("{} processes", session->size() + 1)));
    EXPECT_THAT(e.what(), HasSubstr(fmt::format("found {}", session->size())));
  }
}

TEST(MpiRanks, BadOptionsAreRefused) {
  const Topology t = topology({session->size()});
  const auto nothing = [](Transport&) {};
  EXPECT_THROW(run_mpi(t, {.timeout = std::chrono::milliseconds(0)}, nothing), UsageError);
  EXPECT_THROW(run_mpi(t, {.piece_bytes = 0}, nothing), UsageError);
  EXPECT_THROW(run_mpi(t, {.piece_bytes = std::size_t{1} << 31}, nothing), UsageError);
}

TEST(MpiRanks, AnErrorOfAllRanksIsRethrownAndTheNextRunWorks) {
  const Topology t = topology({session->size()});
  EXPECT_THROW(run_mpi(t, {}, [](Transport&) { throw UsageError("a", "b", "c"); }), UsageError);
  EXPECT_THROW(run_mpi(t, {}, [](Transport&) { throw std::domain_error("all"); }),
               std::domain_error);
  expect_as_virtual(t, {}, [](Comm& comm) { return gather(comm, Algorithm::kRing, nullptr); });
}

TEST(MpiRanks, DelaysOrdersAndPoisonChangeNoBit) {
  using hierarchy::Fault;
  const auto int8 = quant::make_codec("int8:block=64");
  for (const Fault fault : {Fault::kDelay, Fault::kReorder, Fault::kPoison}) {
    for (const Algorithm algorithm : kAlgorithms) {
      SCOPED_TRACE(fmt::format("{}, {}", name(fault), name(algorithm)));
      expect_as_virtual(topologies().back(), {}, [&](Comm& comm) {
        hierarchy::Faulty faulty(comm.transport, {.fault = fault, .seed = 3});
        Comm broken{faulty};
        auto arrays = gather(broken, algorithm, int8.get());
        arrays.push_back(reduce(broken, Call::kAllReduce, algorithm, "").at(0));
        return arrays;
      });
    }
  }
}

TEST(MpiRanks, HostsAreWhatMpiSeesOrTheVariableSays) {
  const auto size = static_cast<std::size_t>(session->size());
  EXPECT_EQ(session->hosts(), std::vector<int>(size, 0));
  ASSERT_EQ(setenv("ZEROPP_MPI_NODE", std::to_string(session->rank() / 2).c_str(), 1), 0);
  std::vector<int> pairs(size);
  for (std::size_t r = 0; r < size; ++r) pairs[r] = static_cast<int>(r / 2 * 2);
  EXPECT_EQ(session->hosts(), pairs);
  ASSERT_EQ(setenv("ZEROPP_MPI_NODE", "x", 1), 0);
  EXPECT_THROW((void)session->hosts(), UsageError);
  unsetenv("ZEROPP_MPI_NODE");
}

TEST(MpiRanks, RankZeroTellsAll) {
  const auto mine = static_cast<std::uint64_t>(session->rank()) + 41;
  EXPECT_EQ(session->from_root(mine, std::chrono::seconds(30)), 41U);
}

}  // namespace

}  // namespace zeropp::test

int main(int argc, char** argv) {
  const zeropp::hierarchy::MpiSession session;
  zeropp::test::session = &session;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
