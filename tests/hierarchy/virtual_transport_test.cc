#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "hierarchy/transport/virtual.h"
#include "quant/error.h"
#include "tests/support/spawn.h"

namespace zeropp::hierarchy {
namespace {

using test::flat;
using test::spawn;
using Bytes = std::vector<std::byte>;

constexpr CallInfo kCall{.collective = Collective::kAllGather, .role = quant::Role::kWeight};

SendOp send_to(int peer, std::span<const std::byte> data) {
  return {.peer = peer, .data = data, .bytes = {.exact = data.size()}};
}

/// What rank `source` sends to rank `destination` as its k-th message.
Bytes letter(int source, int destination, int k, std::size_t size) {
  Bytes b(size);
  for (std::size_t i = 0; i < size; ++i) {
    b[i] = static_cast<std::byte>(source * 31 + destination * 7 + k * 3 + static_cast<int>(i));
  }
  return b;
}

/// FNV-1a of everything a rank saw, in order.
struct Digest {
  std::uint64_t value = 14695981039346656037U;
  void add(std::span<const std::byte> data) {
    for (std::byte b : data) value = (value ^ static_cast<std::uint64_t>(b)) * 1099511628211U;
  }
};

class VirtualTransport : public testing::TestWithParam<test::Launch> {
 protected:
  const VirtualOptions& options() const { return GetParam().options; }
};

constexpr int kWorlds[] = {1, 2, 3, 4, 6, 8, 16, 100};

TEST_P(VirtualTransport, RingPassesEveryTokenToEveryRank) {
  for (int n : kWorlds) {
    const auto sums = spawn<int>(flat(n), options(), [n](Transport& t) {
      int token = t.rank();
      int sum = token;
      for (int hop = 0; hop + 1 < n; ++hop) {
        int next = -1;
        const SendOp s = send_to((t.rank() + 1) % n, std::as_bytes(std::span(&token, 1)));
        const RecvOp r{.peer = (t.rank() + n - 1) % n,
                       .into = hop % 2 == 0 ? reinterpret_cast<std::byte*>(&next) : nullptr,
                       .bytes = sizeof(int)};
        Pending p = t.exchange(kCall, {&s, 1}, {&r, 1});
        p.wait();
        std::memcpy(&next, p.received(0).data(), sizeof(int));
        p.release();
        token = next;
        sum += token;
        if (hop % 5 == 0) t.barrier();
      }
      return sum;
    });
    EXPECT_EQ(sums, std::vector<int>(static_cast<std::size_t>(n), n * (n - 1) / 2)) << n;
  }
}

/// All pairs, several exchanges in flight at once, waited for in an order that is not theirs.
std::uint64_t many_in_flight(Transport& t, int rounds) {
  const int n = t.size();
  std::vector<Bytes> out;
  std::vector<std::vector<Bytes>> in(static_cast<std::size_t>(rounds));
  std::vector<Pending> pending;
  for (int k = 0; k < rounds; ++k) {
    std::vector<SendOp> sends;
    std::vector<RecvOp> recvs;
    for (int p = 0; p < n; ++p) {
      if (p == t.rank()) continue;
      out.push_back(letter(t.rank(), p, k, static_cast<std::size_t>(k * 17 + p)));
      sends.push_back(send_to(p, out.back()));
      const auto size = static_cast<std::size_t>(k * 17 + t.rank());
      in[static_cast<std::size_t>(k)].emplace_back(size);
      recvs.push_back(
          {.peer = p,
           .into = k % 3 == 2 ? nullptr : in[static_cast<std::size_t>(k)].back().data(),
           .bytes = size});
    }
    pending.push_back(t.exchange(kCall, sends, recvs));
  }
  Digest digest;
  for (int i = 0; i < rounds; ++i) {
    const int k = i * 3 % rounds;  // A permutation: rounds is no multiple of 3.
    Pending& p = pending[static_cast<std::size_t>(k)];
    p.wait();
    std::size_t j = 0;
    for (int source = 0; source < n; ++source) {
      if (source == t.rank()) continue;
      const auto got = p.received(j++);
      const Bytes expected =
          letter(source, t.rank(), k, static_cast<std::size_t>(k * 17 + t.rank()));
      EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin(), expected.end()))
          << "rank " << t.rank() << " round " << k << " from " << source;
      digest.add(got);
    }
  }
  for (Pending& p : pending) p.release();
  return digest.value;
}

TEST_P(VirtualTransport, ManyExchangesInFlightMatchFirstInFirstOut) {
  VirtualOptions reference;
  reference.workers = 1;
  for (int n : kWorlds) {
    const int rounds = n > 16 ? 2 : 7;
    const auto body = [rounds](Transport& t) { return many_in_flight(t, rounds); };
    const auto digests = spawn<std::uint64_t>(flat(n), options(), body);
    EXPECT_EQ(digests, spawn<std::uint64_t>(flat(n), reference, body)) << n;
  }
}

TEST_P(VirtualTransport, AViewLendsTheSendersSpanUntilItIsReleased) {
  spawn(flat(2), options(), [](Transport& t) {
    std::vector<int> data(1000, 1 + t.rank());
    const SendOp s = send_to(1 - t.rank(), std::as_bytes(std::span(data)));
    const RecvOp r{.peer = 1 - t.rank(), .into = nullptr, .bytes = s.data.size()};
    for (int round = 0; round < 50; ++round) {
      Pending p = t.exchange(kCall, {&s, 1}, {&r, 1});
      p.wait();
      std::vector<int> got(data.size());
      std::memcpy(got.data(), p.received(0).data(), p.received(0).size());
      EXPECT_EQ(got, std::vector<int>(data.size(), 2 - t.rank() + 2 * round));
      p.release();  // The peer has given its view back: the data may be overwritten.
      for (int& x : data) x += 2;
    }
  });
}

TEST_P(VirtualTransport, ViewsAreNoCopies) {
  std::atomic<const std::byte*> sent{nullptr};
  spawn(flat(2), options(), [&](Transport& t) {
    Bytes data(64);
    if (t.rank() == 0) {
      sent = data.data();
      const SendOp s = send_to(1, data);
      t.exchange(kCall, {&s, 1}, {}).release();
    } else {
      const RecvOp r{.peer = 0, .into = nullptr, .bytes = data.size()};
      Pending p = t.exchange(kCall, {}, {&r, 1});
      p.wait();
      EXPECT_EQ(p.received(0).data(), sent.load());
    }
  });
}

TEST_P(VirtualTransport, VariableSizesTellTheirSizeAndAreBookedWithIt) {
  const Topology topology = Topology::two_level(2, 2);
  spawn(topology, options(), [](Transport& t) {
    const int n = t.size();
    for (std::size_t extra : {0, 5}) {
      const Ledger before = t.ledger();
      std::vector<Bytes> out;
      std::vector<SendOp> sends;
      std::vector<RecvOp> recvs;
      std::vector<Bytes> in(static_cast<std::size_t>(n), Bytes(100));
      std::uint64_t expected = 0;
      for (int p = 0; p < n; ++p) {
        if (p == t.rank()) continue;
        out.push_back(letter(t.rank(), p, 0, static_cast<std::size_t>(t.rank()) * 10 + extra));
        sends.push_back(send_to(p, out.back()));
        recvs.push_back({.peer = p,
                         .into = p % 2 == 0 ? in[static_cast<std::size_t>(p)].data() : nullptr,
                         .bytes = 100,
                         .variable = true});
        expected += static_cast<std::uint64_t>(p) * 10 + extra;
      }
      Pending p = t.exchange(kCall, sends, recvs);
      p.wait();
      for (std::size_t i = 0; i < recvs.size(); ++i) {
        const int source = recvs[i].peer;
        const Bytes letter_in =
            letter(source, t.rank(), 0, static_cast<std::size_t>(source) * 10 + extra);
        EXPECT_TRUE(std::equal(letter_in.begin(), letter_in.end(), p.received(i).begin(),
                               p.received(i).end()));
      }
      p.wait();
      p.release();
      p.release();
      std::uint64_t received = 0;
      for (const TrafficEntry& e : t.ledger().since(before).entries()) {
        received += e.received.bytes.total();
      }
      EXPECT_EQ(received, expected);
    }
  });
}

TEST_P(VirtualTransport, BarrierLetsNobodyAhead) {
  for (int n : {1, 2, 8, 100}) {
    std::atomic<int> arrived{0};
    spawn(flat(n), options(), [&](Transport& t) {
      for (int round = 1; round <= 20; ++round) {
        ++arrived;
        t.barrier();
        EXPECT_GE(arrived.load(), n * round);
        t.barrier();
        EXPECT_LT(arrived.load(), n * (round + 1) + 1);
      }
    });
    EXPECT_EQ(arrived.load(), n * 20);
  }
}

TEST_P(VirtualTransport, WaitingForReceivesIsOptional) {
  // A Pending that is only destroyed still takes its messages, so later ones match.
  spawn(flat(2), options(), [](Transport& t) {
    for (int k = 0; k < 10; ++k) {
      int mine = k;
      int theirs = -1;
      const SendOp s = send_to(1 - t.rank(), std::as_bytes(std::span(&mine, 1)));
      const RecvOp r{.peer = 1 - t.rank(),
                     .into = reinterpret_cast<std::byte*>(&theirs),
                     .bytes = sizeof(int)};
      { const Pending p = t.exchange(kCall, {&s, 1}, {&r, 1}); }
      EXPECT_EQ(theirs, k);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Launches, VirtualTransport, testing::ValuesIn(test::launches()),
                         [](const auto& launch) { return launch.param.name; });

/// What only fibers have, or only they can afford.
class VirtualFibers : public testing::Test {
 protected:
  void SetUp() override {
    if (test::launch_options().thread_per_rank) GTEST_SKIP() << "ZEROPP_TEST_THREADS is set";
  }
};

TEST_F(VirtualFibers, AThousandRanks) {
  VirtualOptions options;
  options.workers = 2;
  const Topology topology = Topology::two_level(128, 8);
  const auto sums = spawn<long>(topology, options, [](Transport& t) {
    // Inside the node, then across nodes: the pairs that a hierarchical collective uses.
    long sum = t.rank();
    const int node = t.rank() / 8;
    for (int hop = 0; hop < 2; ++hop) {
      const int members = hop == 0 ? 8 : 128;
      std::vector<SendOp> sends;
      std::vector<RecvOp> recvs;
      for (int m = 0; m < members; ++m) {
        const int peer = hop == 0 ? node * 8 + m : m * 8 + t.rank() % 8;
        if (peer == t.rank()) continue;
        sends.push_back(send_to(peer, std::as_bytes(std::span(&sum, 1))));
        recvs.push_back({.peer = peer, .into = nullptr, .bytes = sizeof(long)});
      }
      Pending p = t.exchange(kCall, sends, recvs);
      p.wait();
      long total = sum;
      for (std::size_t i = 0; i < recvs.size(); ++i) {
        long x = 0;
        std::memcpy(&x, p.received(i).data(), sizeof(long));
        total += x;
      }
      p.release();
      sum = total;
      t.barrier();
    }
    return sum;
  });
  EXPECT_EQ(sums, std::vector<long>(1024, 1024L * 1023 / 2));
}

TEST_F(VirtualFibers, RunInsideARankOfAnotherRun) {
  VirtualOptions options;
  options.workers = 2;
  const auto sums = spawn<int>(flat(3), options, [&](Transport& outer) {
    const auto inner = spawn<int>(flat(4), options, [](Transport& t) {
      t.barrier();
      return t.rank();
    });
    outer.barrier();
    return outer.rank() + std::accumulate(inner.begin(), inner.end(), 0);
  });
  EXPECT_EQ(sums, (std::vector<int>{6, 7, 8}));
}

TEST_F(VirtualFibers, WorkersOwnConsecutiveRanks) {
  VirtualOptions options;
  options.workers = 3;
  const auto threads = spawn<std::thread::id>(flat(8), options, [](Transport& t) {
    const auto before = std::this_thread::get_id();
    t.barrier();
    EXPECT_EQ(std::this_thread::get_id(), before);
    return before;
  });
  EXPECT_EQ(threads[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(threads.begin(), threads.end()).size(), 3u);
  for (std::size_t r = 2; r < 8; ++r) {
    if (threads[r] != threads[r - 1]) {
      EXPECT_NE(threads[r], threads[r - 2]);
    }
  }
  EXPECT_EQ(virtual_workers(flat(2), options), 2);
  options.workers = 0;
  EXPECT_GE(virtual_workers(flat(8), options), 1);
}

TEST_F(VirtualFibers, WaitedSecondsCountsOthersWork) {
  VirtualOptions options;
  options.workers = 1;
  constexpr auto nap = std::chrono::milliseconds(20);
  const auto waited = spawn<double>(flat(2), options, [&](Transport& t) {
    EXPECT_EQ(t.waited_seconds(), 0);
    if (t.rank() == 1) std::this_thread::sleep_for(nap);
    t.barrier();
    return t.waited_seconds();
  });
  EXPECT_GE(waited[0], 0.02);  // Rank 0 waits while rank 1 sleeps on their only worker.
}

template <class T>
concept CanBypassTheLedger = requires(T& t) {
  t.start(CallInfo{}, std::uint64_t{1}, std::span<const SendOp>{}, std::span<const RecvOp>{},
          quant::Stream{});
};

TEST(TransportFront, NothingIsSentUncounted) {
  static_assert(!CanBypassTheLedger<Transport>);
  std::atomic<std::uint64_t> hook_calls{0};
  VirtualOptions options;
  options.workers = 1;
  options.on_exchange = [&](int rank, const CallInfo& call, std::uint64_t sequence) {
    EXPECT_LT(rank, 4);
    EXPECT_EQ(call, kCall);
    EXPECT_EQ(sequence, 1u);
    ++hook_calls;
  };
  spawn(Topology::two_level(2, 2), options, [](Transport& t) {
    const Bytes data(48);
    std::vector<SendOp> sends;
    std::vector<RecvOp> recvs;
    for (int p = 0; p < t.size(); ++p) {
      if (p == t.rank()) continue;
      sends.push_back(
          {.peer = p, .data = data, .bytes = {.payload = 40, .scale = 6, .padding = 2}});
      recvs.push_back({.peer = p, .into = nullptr, .bytes = data.size()});
    }
    EXPECT_EQ(t.sequence(), 0u);
    t.exchange(kCall, sends, recvs).release();
    EXPECT_EQ(t.sequence(), 1u);
    ASSERT_EQ(t.ledger().entries().size(), 2u);
    const TrafficEntry& node = t.ledger().entries()[0];
    const TrafficEntry& net = t.ledger().entries()[1];
    EXPECT_EQ(node.key, (TrafficKey{.link = 0, .call = kCall}));
    EXPECT_EQ(node.sent.bytes, (quant::WireBytes{.payload = 40, .scale = 6, .padding = 2}));
    EXPECT_EQ(node.sent.messages, 1u);
    EXPECT_EQ(net.key.link, 1);
    EXPECT_EQ(net.sent.bytes, (quant::WireBytes{.payload = 80, .scale = 12, .padding = 4}));
    EXPECT_EQ(net.received.bytes, quant::WireBytes{.payload = 96});
    EXPECT_EQ(net.received.messages, 2u);
  });
  EXPECT_EQ(hook_calls.load(), 4u);
}

TEST(TransportFront, RefusesBadMessages) {
  VirtualOptions options;
  options.workers = 1;
  const Bytes data(8);
  const auto refused = [&](const SendOp& s, const RecvOp& r) {
    spawn(flat(2), options, [&](Transport& t) {
      if (t.rank() != 0) return;
      EXPECT_THROW(t.exchange(kCall, {&s, 1}, {}), UsageError);
      EXPECT_THROW(t.exchange(kCall, {}, {&r, 1}), UsageError);
      EXPECT_EQ(t.sequence(), 0u);
      EXPECT_TRUE(t.ledger().entries().empty());
    });
  };
  for (int peer : {-1, 0, 2}) refused(send_to(peer, data), {.peer = peer, .bytes = 8});
  refused({.peer = 1, .data = data, .bytes = {.exact = 7}}, {.peer = 0, .bytes = 8});
}

TEST(TransportFront, RefusesBadOptions) {
  const auto run = [](auto change) {
    VirtualOptions options;
    change(options);
    run_virtual(flat(2), options, [](Transport&) {});
  };
  EXPECT_THROW(run([](VirtualOptions& o) { o.workers = -1; }), UsageError);
  EXPECT_THROW(run([](VirtualOptions& o) { o.stack_bytes = 100; }), UsageError);
  EXPECT_THROW(run([](VirtualOptions& o) { o.timeout = std::chrono::milliseconds(0); }),
               UsageError);
}

}  // namespace
}  // namespace zeropp::hierarchy
