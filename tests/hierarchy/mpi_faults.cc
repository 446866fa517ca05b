// What goes wrong here ends the run: one case a program, named on the command line. Rank 1 must
// have the expected words in its error, and ends all with 42.
#include <fmt/format.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "hierarchy/transport/faulty.h"
#include "hierarchy/transport/mpi.h"
#include "quant/error.h"
#include "tests/hierarchy/collectives_support.h"

namespace zeropp::test {
namespace {

using hierarchy::CallInfo;
using hierarchy::Pending;
using hierarchy::RecvOp;
using hierarchy::SendOp;
using hierarchy::Transport;

/// Odd enough that chunks differ in size.
constexpr std::size_t kNumel = 5003;

Array filled(std::uint64_t seed, int rank, std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = value(seed, static_cast<std::uint64_t>(rank), i);
  return {Dtype::kF32, x};
}

using Bytes = std::vector<std::byte>;
constexpr CallInfo kCall{.collective = hierarchy::Collective::kOther};

void send(Transport& t, int peer, std::size_t n) {
  const Bytes data(n);
  const SendOp op{.peer = peer, .data = data, .bytes = {.exact = n}};
  t.exchange(kCall, {&op, 1}, {}).release();
}

void receive(Transport& t, int peer, std::size_t n, const CallInfo& call = kCall) {
  const RecvOp op{.peer = peer, .bytes = n};
  t.exchange(call, {}, {&op, 1}).release();
}

/// Sums with a codec that cannot encode on rank 0.
class NoEncode final : public quant::Codec {
 public:
  const std::string& spec() const override { return inner_->spec(); }
  quant::CodecTraits traits() const override { return inner_->traits(); }
  quant::WireBytes wire_bytes(std::size_t n) const override { return inner_->wire_bytes(n); }
  std::size_t encode(quant::ConstView x, const quant::CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    if (ctx.sender == 0) throw std::runtime_error("encode is broken");
    return inner_->encode(x, ctx, wire);
  }
  void decode(std::span<const std::byte> wire, quant::MutView out) const override {
    inner_->decode(wire, out);
  }

 private:
  quant::CodecPtr inner_ = quant::make_codec("int8:block=64");
};

void reduce_with(Transport& t, const quant::Codec* codec, std::size_t numel) {
  Comm comm{t};
  const Array in = filled(1, t.rank(), numel);
  Array out(Dtype::kF32, cut(in.floats(), t.size(), t.size(), t.rank()));
  const std::vector<const quant::Codec*> codecs(static_cast<std::size_t>(t.topology().levels()),
                                                codec);
  const hierarchy::ReduceTensor tensor{
      .numel = numel, .in = in.view(), .out = out.mut(), .codecs = codecs};
  reduce_scatter(comm, {}, {}, std::span(&tensor, 1));
}

struct Fault {
  const char* name;
  void (*body)(Transport&);
  std::vector<std::string> words_on_rank_1;
};

const std::vector<Fault> kFaults = {
    {"other_size",
     [](Transport& t) {
       if (t.rank() == 0) send(t, 1, 100);
       if (t.rank() == 1) receive(t, 0, 96);
     },
     {"mismatch: rank 1 expects 96 bytes of other", "sequence 1, from rank 0, which sent 100"}},
    {"other_call",
     [](Transport& t) {
       if (t.rank() == 0) send(t, 1, 100);
       if (t.rank() == 1) {
         receive(t, 0, 100, {.collective = hierarchy::Collective::kAllGather, .hop = 2});
       }
     },
     {"mismatch: rank 1 expects 100 bytes of all_gather (hierarchical, hop 2",
      "which sent 100 bytes of other"}},
    {"silence",
     [](Transport& t) {
       if (t.rank() == 1) receive(t, 0, 64);
     },
     {"timeout: no progress for 500 ms; rank 1 waits for 64 bytes of other", "sequence 1",
      "from rank 0"}},
    {"absent_from_barrier",
     [](Transport& t) {
       if (t.rank() != 0) t.barrier();
     },
     {"timeout: no progress for 500 ms; rank 1 waits in barrier 1, after sequence 0"}},
    {"one_throws",
     [](Transport& t) {
       if (t.rank() == 1) throw UsageError("x", "y", "z");
     },
     {"rank 1 failed before its first exchange: [x] expected y, found z",
      "not all ranks ended in the same way"}},
    {"thrown_past_an_exchange",
     [](Transport& t) {
       if (t.rank() != 1) return;
       Bytes into(64);
       const RecvOp op{.peer = 0, .into = into.data(), .bytes = into.size()};
       const Pending pending = t.exchange(kCall, {}, {&op, 1});
       throw std::runtime_error("past it");
     },
     {"rank 1 failed in other hop 0, sequence 1: past it"}},
    {"throw_in_encode",
     [](Transport& t) {
       t.barrier();
       const NoEncode codec;
       reduce_with(t, &codec, kNumel);
     },
     {"[mpi] rank 0 failed in barrier hop 0, sequence 0: encode is broken; rank 1 waits for",
      "bytes of reduce_scatter (hierarchical, hop 0", "sequence 1, from rank 0"}},
    {"other_codec",
     [](Transport& t) {
       const auto codec = quant::make_codec(t.rank() == 0 ? "int8:block=64"
                                                          : "int8:block=64,scheme=deepspeed");
       reduce_with(t, codec.get(), kNumel);
     },
     {"mismatch: rank 1 expects", "tensors and codecs: expected those with hash"}},
    {"truncated",
     [](Transport& t) {
       hierarchy::Faulty faulty(t, {.fault = hierarchy::Fault::kTruncate, .rank = 0});
       const auto codec = quant::make_codec("int8:block=64");
       reduce_with(faulty, codec.get(), kNumel);
     },
     {"mismatch: rank 1 expects", "bytes of reduce_scatter", "sequence 1, from rank 0"}},
    {"dropped",
     [](Transport& t) {
       hierarchy::Faulty faulty(t, {.fault = hierarchy::Fault::kDrop, .rank = 0});
       const auto codec = quant::make_codec("int8:block=64");
       reduce_with(faulty, codec.get(), kNumel);
     },
     {"timeout: no progress for 500 ms; rank 1 waits for", "bytes of reduce_scatter",
      "sequence 1, from rank 0"}},
};

int run_fault(const hierarchy::MpiSession& session, const std::string& name) {
  for (const Fault& fault : kFaults) {
    if (fault.name != name) continue;
    std::string text = "no error";
    try {
      run_mpi(topology({session.size()}), {.timeout = std::chrono::milliseconds(500)},
              fault.body);
    } catch (const TransportError& e) {
      text = e.what();
    }
    if (session.rank() != 1) {  // Rank 1's end counts.
      std::this_thread::sleep_for(std::chrono::seconds(20));
      session.abort(1);
    }
    for (const std::string& words : fault.words_on_rank_1) {
      if (text.find(words) == std::string::npos) {
        fmt::print(stderr, "rank 1 does not say '{}' but: {}\n", words, text);
        session.abort(1);
      }
    }
    session.abort(42);
  }
  return 2;
}

}  // namespace
}  // namespace zeropp::test

int main(int argc, char** argv) {
  const zeropp::hierarchy::MpiSession session;
  return argc == 2 ? zeropp::test::run_fault(session, argv[1]) : 2;
}
