// What happens when a rank throws, leaves, or calls something else than its peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "hierarchy/transport/virtual.h"
#include "quant/error.h"
#include "tests/support/spawn.h"

namespace zeropp::hierarchy {
namespace {

using test::error_of;
using test::flat;
using test::spawn;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Bytes = std::vector<std::byte>;

constexpr CallInfo kGather{.collective = Collective::kAllGather,
                           .phase = Phase::kForward,
                           .role = quant::Role::kWeight,
                           .hop = 1};

/// One message of `size` bytes to every peer, in buffers that die with the call.
void all_pairs(Transport& t, std::size_t size, bool views = false, CallInfo call = kGather) {
  const Bytes out(size);
  Bytes in(size * static_cast<std::size_t>(t.size()));
  std::vector<SendOp> sends;
  std::vector<RecvOp> recvs;
  for (int p = 0; p < t.size(); ++p) {
    if (p == t.rank()) continue;
    sends.push_back({.peer = p, .data = out, .bytes = {.exact = size}});
    std::byte* into = in.data() + static_cast<std::size_t>(p) * size;
    recvs.push_back({.peer = p, .into = views ? nullptr : into, .bytes = size});
  }
  Pending pending = t.exchange(call, sends, recvs);
  pending.wait();
  unsigned sum = 0;
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    for (std::byte b : pending.received(i)) sum += static_cast<unsigned>(b);
  }
  EXPECT_EQ(sum, 0u);
  pending.release();
}

class VirtualFailure : public testing::TestWithParam<test::Launch> {
 protected:
  VirtualOptions options() const { return GetParam().options; }
  VirtualOptions impatient() const {
    VirtualOptions o = GetParam().options;
    o.timeout = std::chrono::milliseconds(300);
    return o;
  }
};

TEST_P(VirtualFailure, OneRanksThrowEndsAllWithItsText) {
  for (int n : {1, 2, 8, 100}) {
    std::atomic<int> ended{0};
    std::atomic<int> told{0};
    const auto body = [&](Transport& t) {
      struct Ended {
        std::atomic<int>& count;
        ~Ended() { ++count; }
      } const scope{ended};
      all_pairs(t, 100);
      if (t.rank() == n - 1) throw std::runtime_error("boom");
      try {
        all_pairs(t, 100);
        t.barrier();
      } catch (const TransportError& e) {
        ++told;
        EXPECT_THAT(e.what(), HasSubstr("rank " + std::to_string(n - 1) + " failed"));
        EXPECT_THROW(t.barrier(), TransportError);  // And so does every later call.
        EXPECT_THROW(all_pairs(t, 1), TransportError);
        throw;
      }
    };
    const std::string text = error_of<TransportError>([&] { spawn(flat(n), options(), body); });
    EXPECT_EQ(text, "[virtual] rank " + std::to_string(n - 1) +
                        " failed in all_gather hop 1, sequence 1: boom");
    EXPECT_EQ(told, n - 1);
    EXPECT_EQ(ended, n);
  }
}

TEST_P(VirtualFailure, UsageErrorStaysOneAndNamesTheRank) {
  const std::string text = error_of<UsageError>([&] {
    spawn(flat(4), options(), [](Transport& t) {
      t.barrier();
      if (t.rank() == 2) throw UsageError("model", "layers >= 1", "0");
      t.barrier();
    });
  });
  EXPECT_EQ(text,
            "[model] expected layers >= 1, found 0 (virtual rank 2, in barrier hop 0, "
            "sequence 0)");
}

TEST_P(VirtualFailure, OtherThingsThrown) {
  EXPECT_EQ(error_of<TransportError>([&] {
              spawn(flat(3), options(), [](Transport& t) {
                if (t.rank() == 1) throw 7;
                t.barrier();
              });
            }),
            "[virtual] rank 1 failed before its first exchange: an exception that is no "
            "std::exception");
  EXPECT_EQ(error_of<TransportError>([&] {
              spawn(flat(3), options(), [](Transport& t) {
                if (t.rank() == 1) throw TransportError("cable cut");
                t.barrier();
              });
            }),
            "[virtual] rank 1 failed before its first exchange: cable cut");
}

TEST_P(VirtualFailure, AnotherCollectiveIsAMismatch) {
  const std::string text = error_of<TransportError>([&] {
    spawn(flat(2), options(), [](Transport& t) {
      t.barrier();
      if (t.rank() == 0) all_pairs(t, 4);  // Rank 0 has one exchange more behind it.
      CallInfo call = kGather;
      if (t.rank() == 1) {
        call.collective = Collective::kReduceScatter;
        call.role = quant::Role::kGradient;
      }
      all_pairs(t, 4, true, call);
    });
  });
  EXPECT_THAT(text, HasSubstr("mismatch"));
  EXPECT_THAT(text, HasSubstr("rank 0"));
  EXPECT_THAT(text, HasSubstr("rank 1"));
  EXPECT_THAT(text, HasSubstr("4 bytes of all_gather"));
  EXPECT_THAT(text, HasSubstr("4 bytes of reduce_scatter"));
  EXPECT_THAT(text, HasSubstr("hop 1"));
  EXPECT_THAT(text, HasSubstr("sequence 1"));
}

TEST_P(VirtualFailure, EveryFieldOfTheCallIsCompared) {
  for (int field = 0; field < 5; ++field) {
    CallInfo other = kGather;
    if (field == 0) other.collective = Collective::kBroadcast;
    if (field == 1) other.algorithm = Algorithm::kRing;
    if (field == 2) other.phase = Phase::kBackward;
    if (field == 3) other.role = quant::Role::kScalar;
    if (field == 4) other.hop = 0;
    EXPECT_THAT(error_of<TransportError>([&] {
                  spawn(flat(3), options(), [&](Transport& t) {
                    all_pairs(t, 4, false, t.rank() == 1 ? other : kGather);
                  });
                }),
                HasSubstr("mismatch"));
  }
}

TEST_P(VirtualFailure, OtherSizesAreAMismatch) {
  struct Case {
    std::size_t sent, expected;
    bool variable;
  };
  for (const Case& c : {Case{100, 99, false}, Case{99, 100, false}, Case{101, 100, true}}) {
    const std::string text = error_of<TransportError>([&] {
      spawn(flat(2), options(), [&](Transport& t) {
        Bytes data(200);
        if (t.rank() == 0) {
          const SendOp s{
              .peer = 1, .data = std::span(data).first(c.sent), .bytes = {.payload = c.sent}};
          t.exchange(kGather, {&s, 1}, {}).release();
        } else {
          const RecvOp r{
              .peer = 0, .into = data.data(), .bytes = c.expected, .variable = c.variable};
          t.exchange(kGather, {}, {&r, 1}).release();
        }
        t.barrier();
      });
    });
    EXPECT_THAT(
        text,
        AllOf(HasSubstr("[virtual] rank 1 failed in all_gather hop 1, sequence 1: mismatch"),
              HasSubstr(std::to_string(c.expected) + " bytes"),
              HasSubstr("from rank 0, which sent " + std::to_string(c.sent) + " bytes")));
  }
}

TEST_P(VirtualFailure, ARankThatLeavesIsMissedAfterTheTimeout) {
  const std::string text = error_of<TransportError>([&] {
    spawn(flat(4), impatient(), [](Transport& t) {
      all_pairs(t, 16);
      if (t.rank() == 2) return;
      if (t.rank() == 3) t.barrier();
      all_pairs(t, 16);
    });
  });
  EXPECT_THAT(text, HasSubstr("[virtual] timeout: no progress for 300 ms"));
  EXPECT_THAT(text, HasSubstr("rank 0 waits for 16 bytes of all_gather"));
  EXPECT_THAT(text, HasSubstr("rank 1 waits for 16 bytes of all_gather"));
  EXPECT_THAT(text, HasSubstr("sequence 2, from rank"));
  EXPECT_THAT(text, HasSubstr("rank 3 waits in barrier 1, after sequence 1"));
  EXPECT_THAT(text, HasSubstr("rank 2 was last in all_gather hop 1, sequence 1"));
}

TEST_P(VirtualFailure, ASendThatNobodyTakesTimesOut) {
  const std::string text = error_of<TransportError>([&] {
    spawn(flat(2), impatient(), [](Transport& t) {
      if (t.rank() == 1) return;
      const Bytes data(5);
      const SendOp s{.peer = 1, .data = data, .bytes = {.exact = 5}};
      t.exchange(kGather, {&s, 1}, {}).release();
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 0 waits for its sends of all_gather"));
}

TEST_P(VirtualFailure, ARankThatNeverYieldsIsReported) {
  std::atomic<bool> failed{false};
  const std::string text = error_of<TransportError>([&] {
    spawn(flat(4), impatient(), [&](Transport& t) {
      if (t.rank() == 3) {
        // With one worker nobody else can notice, so the stuck rank must not wait for them.
        for (int i = 0; i < 900 && !failed; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
      try {
        t.barrier();
      } catch (...) {
        failed = true;
        throw;
      }
    });
  });
  EXPECT_THAT(text, HasSubstr("timeout"));
  EXPECT_THAT(text, HasSubstr("rank 0 waits in barrier 1"));
  EXPECT_THAT(text, Not(HasSubstr("rank 3 waits")));
}

TEST_P(VirtualFailure, SlowRanksThatMoveDoNotTimeOut) {
  VirtualOptions o = options();
  o.timeout = std::chrono::milliseconds(500);
  EXPECT_NO_THROW(spawn(flat(2), o, [](Transport& t) {
    for (int i = 0; i < 12; ++i) {
      if (t.rank() == i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      t.barrier();
    }
  }));
}

/// An exception object knows which rank threw it.
struct Thrown : std::runtime_error {
  explicit Thrown(int r) : std::runtime_error("thrown by " + std::to_string(r)), rank(r) {}
  int rank;
};

TEST_P(VirtualFailure, FibersInsideCatchBlocksKeepTheirOwnExceptions) {
  const auto ranks = spawn<int>(flat(4), options(), [](Transport& t) {
    for (int round = 0; round < 10; ++round) {
      try {
        throw Thrown(t.rank());
      } catch (const Thrown&) {
        t.barrier();  // Everyone is inside a catch block now.
        if (t.rank() % 2 == 0) {
          try {
            throw Thrown(t.rank() + 100);
          } catch (const Thrown& inner) {
            t.barrier();
            EXPECT_EQ(inner.rank, t.rank() + 100);
          }
        } else {
          t.barrier();
        }
        try {
          throw;  // Rethrows what this fiber caught, if the globals were kept apart.
        } catch (const Thrown& again) {
          EXPECT_EQ(again.rank, t.rank());
        }
      }
      EXPECT_EQ(std::current_exception(), nullptr);
    }
    return t.rank();
  });
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2, 3}));
}

TEST_P(VirtualFailure, UncaughtCountsAreAFibersOwn) {
  spawn(flat(4), options(), [](Transport& t) {
    struct WaitsInDestructor {
      Transport& t;
      ~WaitsInDestructor() {
        EXPECT_EQ(std::uncaught_exceptions(), t.rank() == 0 ? 1 : 0);
        t.barrier();
        EXPECT_EQ(std::uncaught_exceptions(), t.rank() == 0 ? 1 : 0);
        t.barrier();
      }
    };
    try {
      const WaitsInDestructor scope{t};
      if (t.rank() == 0) throw Thrown(0);
    } catch (const Thrown&) {
      EXPECT_EQ(t.rank(), 0);
    }
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  });
}

TEST_P(VirtualFailure, TwoFibersThrowAtOnce) {
  const std::string text = error_of<TransportError>([&] {
    spawn(flat(4), options(), [](Transport& t) {
      try {
        throw Thrown(t.rank());
      } catch (const Thrown&) {
        t.barrier();
        if (t.rank() < 2) throw;
        t.barrier();
      }
    });
  });
  EXPECT_THAT(text, testing::MatchesRegex("\\[virtual\\] rank [01] failed in barrier hop 0, "
                                          "sequence 0: thrown by [01]"));
  EXPECT_EQ(text[15], text.back()) << text;  // The rank that is named threw the text.
}

TEST_P(VirtualFailure, AnExceptionThroughAnExchangeInFlightFailsTheRun) {
  // The rank unwinds over its Pending; it must neither hang nor leave its peers waiting.
  const auto run = [&](bool swallow) {
    return error_of<TransportError>([&] {
      spawn(flat(2), options(), [&](Transport& t) {
        try {
          Bytes in(8);
          const RecvOp r{.peer = 1 - t.rank(), .into = in.data(), .bytes = 8};
          const Pending p = t.exchange(kGather, {}, {&r, 1});
          if (t.rank() == 1) throw Thrown(1);
        } catch (const Thrown&) {
          if (!swallow) throw;
        }
      });
    });
  };
  EXPECT_EQ(run(false), "[virtual] rank 1 failed in all_gather hop 1, sequence 1: thrown by 1");
  EXPECT_THAT(run(true),
              HasSubstr("rank 1 failed in all_gather hop 1, sequence 1: an exception "
                        "was caught after it had passed through an exchange"));
}

TEST_P(VirtualFailure, BuffersMayDieWhileOthersReadThem) {
  // Every rank frees its buffers as it unwinds; sanitizers see any read of a freed one.
  for (int fatal = 0; fatal < 24; ++fatal) {
    VirtualOptions o = options();
    o.on_exchange = [&](int rank, const CallInfo&, std::uint64_t sequence) {
      if (rank == fatal % 5 && sequence == static_cast<std::uint64_t>(1 + fatal / 5)) {
        throw std::runtime_error("hook");
      }
    };
    const std::string text = error_of<TransportError>([&] {
      spawn(flat(5), o, [&](Transport& t) {
        for (int i = 0; i < 6; ++i) all_pairs(t, 20'000, (t.rank() + i) % 2 == 0);
      });
    });
    EXPECT_EQ(text, "[virtual] rank " + std::to_string(fatal % 5) +
                        " failed in all_gather hop 1, sequence " +
                        std::to_string(1 + fatal / 5) + ": hook");
  }
}

TEST_P(VirtualFailure, MutualViewsInAnyOrderOfDestructionEndAfterAFailure) {
  // Each gives up its send first and the view of the other's message last: a circle of waits.
  EXPECT_THROW(spawn(flat(3), options(),
                     [](Transport& t) {
                       if (t.rank() == 2) {
                         t.barrier();
                         throw Thrown(2);
                       }
                       const int peer = 1 - t.rank();
                       const auto data = std::make_unique<Bytes>(64);
                       const SendOp s{.peer = peer, .data = *data, .bytes = {.exact = 64}};
                       const RecvOp r{.peer = peer, .into = nullptr, .bytes = 64};
                       Pending first = t.exchange(kGather, {}, {&r, 1});
                       Pending second = t.exchange(kGather, {&s, 1}, {});
                       first.wait();
                       second.wait();
                       t.barrier();
                       t.barrier();
                     }),
               TransportError);
}

INSTANTIATE_TEST_SUITE_P(Launches, VirtualFailure, testing::ValuesIn(test::launches()),
                         [](const auto& launch) { return launch.param.name; });

}  // namespace
}  // namespace zeropp::hierarchy
