// Codecs that remember: error feedback, LoCo, EF21, and the transactions of their state.

#include "quant/codec_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/error.h"
#include "quant/registry.h"
#include "tests/quant/codec_data.h"

namespace zeropp::quant {
namespace {

using namespace testing_support;  // NOLINT

CodecContext with(CodecState& state, std::uint64_t step = 0, std::uint32_t tensor = 5) {
  CodecContext ctx = context();
  ctx.state = &state;
  ctx.step = step;
  ctx.tensor = tensor;
  return ctx;
}

std::vector<float> send(const Codec& codec, const std::vector<float>& x,
                        const CodecContext& ctx) {
  const Bytes wire = encode(codec, view(x), ctx);
  std::vector<float> y(x.size());
  codec.decode_with(wire, ctx, mut_view(y));
  return y;
}

/// The residual of the only key, in fp32.
std::vector<float> only(const CodecState& state) {
  const auto pieces = state.pieces();
  EXPECT_EQ(pieces.size(), 1U);
  return decode(*make_codec(pieces.at(0).store), pieces.at(0).bytes, pieces.at(0).n);
}

double rms(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

TEST(ErrorFeedback, WhatWasSentAddsUpToWhatWasMeant) {
  constexpr std::size_t n = 300;
  const auto ef = make_codec("ef|int4:block=32"), plain = make_codec("int4:block=32");
  CodecState state;
  std::vector<double> behind(n), lost(n);
  const auto x = make_data("normal", n);  // The same every step: rounding repeats its error.
  for (std::uint64_t step = 0; step < 50; ++step) {
    const auto y = send(*ef, x, with(state, step));
    const auto z = send(*plain, x, with(state, step));
    state.commit(Role::kGradient);
    const auto e = only(state);
    for (std::size_t i = 0; i < n; ++i) {
      behind[i] += double{x[i]} - y[i];
      lost[i] += double{x[i]} - z[i];
      // Telescoping: all that is missing is in the residual, up to fp32 roundings.
      ASSERT_NEAR(behind[i], e[i], 1e-4);
    }
  }
  EXPECT_LT(rms(behind), rms(lost) / 20);
}

TEST(ErrorFeedback, BetaIsTheShareThatIsAdded) {
  const auto ef = make_codec("ef(0.5)|int4:block=32"), q = make_codec("int4:block=32");
  CodecState state;
  std::vector<float> e(64);
  for (std::uint32_t step = 0; step < 4; ++step) {
    std::vector<float> c = make_data("normal", 64, step);
    const auto y = send(*ef, make_data("normal", 64, step), with(state));
    for (std::size_t i = 0; i < c.size(); ++i) c[i] += 0.5F * e[i];
    const auto wanted = decode(*q, encode(*q, view(c)), c.size());
    ASSERT_TRUE(same_bits(y, wanted));
    for (std::size_t i = 0; i < c.size(); ++i) e[i] = c[i] - wanted[i];
    state.commit(Role::kGradient);
  }
  EXPECT_TRUE(same_bits(only(state), e));
}

/// LoCo as it is coded, with scalar loops: int8 residuals in blocks of 128, scale absmax / 127.
class LocoReference {
 public:
  explicit LocoReference(std::size_t n) : e_(n) {}
  std::vector<float> send(std::vector<float> c) {
    const auto q4 = make_codec("int4:block=64");
    for (std::size_t i = 0; i < c.size(); ++i) c[i] += e_[i];
    const auto q = decode(*q4, encode(*q4, view(c)), c.size());
    const float beta = 0.8F;
    for (std::size_t i = 0; i < c.size(); ++i) {
      e_[i] = beta * e_[i] + (1 - beta) * (c[i] - q[i]);
    }
    for (std::size_t first = 0; first < e_.size(); first += 128) {
      const std::size_t end = std::min(e_.size(), first + 128);
      float absmax = 0;
      for (std::size_t i = first; i < end; ++i) absmax = std::max(absmax, std::fabs(e_[i]));
      const float scale = absmax / 127;
      for (std::size_t i = first; i < end; ++i) {
        e_[i] = scale == 0 ? 0 : std::nearbyint(e_[i] / scale) * scale;
      }
    }
    if (++steps_ % 3 == 0) e_.assign(e_.size(), 0);
    return q;
  }
  const std::vector<float>& e() const { return e_; }

 private:
  std::vector<float> e_;
  int steps_ = 0;
};

TEST(Loco, IsWhatItsCodeDoes) {
  const auto loco = make_codec("loco(reset=3)|int4:block=64");
  EXPECT_EQ(loco->spec(), "loco(beta=0.8,reset=3)|int4:block=64");
  CodecState state;
  LocoReference reference(300);
  for (std::uint32_t step = 0; step < 8; ++step) {
    const auto x = make_data("normal", 300, step);
    ASSERT_TRUE(same_bits(send(*loco, x, with(state)), reference.send(x))) << step;
    state.commit(Role::kGradient);
    const auto e = only(state);
    for (std::size_t i = 0; i < e.size(); ++i) ASSERT_EQ(e[i], reference.e()[i]) << step;
  }
}

TEST(Loco, ResetsAllTensorsOnTheSameStep) {
  const auto loco = make_codec("loco(reset=3)|int4:block=64");
  CodecState state;
  for (std::uint64_t step = 1; step <= 6; ++step) {
    for (std::uint32_t tensor = 0; tensor < 5; ++tensor) {
      send(*loco, make_data("normal", 100, tensor), with(state, step, tensor));
    }
    state.commit(Role::kGradient);
    for (const ResidualPiece& piece : state.pieces()) {
      const auto e = decode(*make_codec(piece.store), piece.bytes, piece.n);
      const bool zero = std::all_of(e.begin(), e.end(), [](float v) { return v == 0; });
      EXPECT_EQ(zero, step % 3 == 0) << step << ' ' << piece.key.tensor;
    }
  }
}

TEST(Ef21, SenderAndReceiversHoldTheSameBits) {
  const auto ef21 = make_codec("ef21|int4:block=32");
  CodecState sender, receiver;
  sender.set_gradient_scale(1024);
  receiver.set_gradient_scale(1024);
  const auto x = make_data("normal", 200);
  double first = 0, last = 0;
  for (std::uint64_t step = 0; step < 12; ++step) {
    const Bytes wire = encode(*ef21, view(x), with(sender, step));
    std::vector<float> y(x.size());
    ef21->decode_with(wire, with(receiver, step), mut_view(y));
    sender.commit(Role::kGradient);
    receiver.commit(Role::kGradient);
    const auto h = only(sender);
    ASSERT_TRUE(same_bits(h, only(receiver)));
    last = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i], h[i] * 1024);
      last = std::max<double>(last, std::fabs(y[i] - x[i]));
    }
    if (step == 0) first = last;
  }
  EXPECT_LT(last, first / 1000);  // A number that stands still is learnt exactly.
}

TEST(Ef21, KeepsOneEstimateASource) {
  const auto ef21 = make_codec("ef21|int4:block=32");
  CodecState a, b, receiver;
  const auto x = make_data("normal", 64, 1), y = make_data("normal", 64, 2);
  std::vector<float> mean(64);
  for (std::uint64_t step = 0; step < 12; ++step) {
    const Bytes from_a = encode(*ef21, view(x), with(a)),
                from_b = encode(*ef21, view(y), with(b));
    const std::vector<std::span<const std::byte>> wires{from_a, from_b};
    ef21->decode_sum_with(wires, 2, with(receiver), mut_view(mean));
    for (CodecState* s : {&a, &b, &receiver}) s->commit(Role::kGradient);
  }
  const auto h_a = only(a), h_b = only(b);
  for (std::size_t i = 0; i < 64; ++i) ASSERT_EQ(mean[i], (h_a[i] + h_b[i]) / 2);
}

const std::vector<std::string>& stateful_specs() {
  static const std::vector<std::string> specs{"ef|int4:block=32", "ef(0.7,store=int8)|mxfp4",
                                              "loco(reset=5)|hadamard(16)|int4:block=32",
                                              "ef21|int4:block=32",
                                              "hadamard(16)|ef21|int4:block=32"};
  return specs;
}

class Stateful : public testing::TestWithParam<std::string> {
 protected:
  CodecPtr codec_ = make_codec(GetParam());
  std::vector<float> run(CodecState& state, std::uint64_t steps, std::uint64_t from = 0) {
    std::vector<float> y;
    for (std::uint64_t s = from; s < from + steps; ++s) {
      y = send(*codec_, make_data("normal", 100, static_cast<std::uint32_t>(s)),
               with(state, s));
      state.commit(Role::kGradient);
    }
    return y;
  }
};

TEST_P(Stateful, ASkippedStepLeavesNoTrace) {
  for (const std::string kind : {"nan_mid", "inf_first", "normal", "huge"}) {
    CodecState with_skips, without;
    run(without, 4);
    run(with_skips, 3);
    for (int micro = 0; micro < 2; ++micro) {
      send(*codec_, make_data(kind, 100, 50), with(with_skips, 3));
    }
    with_skips.rollback(Role::kGradient);
    run(with_skips, 1, 3);
    const auto a = with_skips.pieces(), b = without.pieces();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].bytes == b[i].bytes) << kind;
    EXPECT_EQ(with_skips.applied(Role::kGradient), 4U);
  }
}

TEST_P(Stateful, MicroStepsSeeEachOther) {
  // Three micro-steps of one step do what three steps do (the reset apart).
  CodecState chain, steps;
  std::vector<float> a, b;
  for (std::uint32_t m = 0; m < 3; ++m) {
    const auto x = make_data("normal", 100, m);
    CodecContext in_chain = with(chain), alone = with(steps);
    in_chain.micro = alone.micro = m;
    a = send(*codec_, x, in_chain);
    b = send(*codec_, x, alone);
    steps.commit(Role::kGradient);
    ASSERT_TRUE(same_bits(a, b)) << m;
  }
  EXPECT_THROW(chain.pieces(), UsageError);  // In the midst of a step.
  chain.commit(Role::kGradient);
  EXPECT_TRUE(chain.pieces().at(0).bytes == steps.pieces().at(0).bytes);
}

TEST_P(Stateful, AChangeOfTheLossScaleChangesNothing) {
  CodecState scaled, plain;
  for (std::uint32_t step = 0; step < 4; ++step) {
    const float scale = step % 2 == 0 ? 65536 : 32;
    auto x = make_data("normal", 100, step);
    const auto y = send(*codec_, x, with(plain));
    for (float& v : x) v *= scale;
    scaled.set_gradient_scale(scale);
    auto z = send(*codec_, x, with(scaled));
    for (float& v : z) v /= scale;
    ASSERT_TRUE(same_bits(y, z)) << step;
    plain.commit(Role::kGradient);
    scaled.commit(Role::kGradient);
  }
}

TEST_P(Stateful, KeysKeepResidualsApart) {
  CodecState state;
  std::size_t kept = 0;
  const auto expect_new = [&](auto set) {
    CodecContext ctx = with(state);
    set(ctx);
    send(*codec_, make_data("normal", 40), ctx);
    state.commit(ctx.role);
    const std::size_t now = state.pieces().size();
    EXPECT_GT(now, kept);
    kept = now;
  };
  expect_new([](CodecContext&) {});
  expect_new([](CodecContext& c) { ++c.tensor; });
  expect_new([](CodecContext& c) { ++c.part; });
  expect_new([](CodecContext& c) { ++c.level; });
  expect_new([](CodecContext& c) { c.second_hop = true; });
  expect_new([](CodecContext& c) { c.role = Role::kWeight; });
  const auto again = [&](auto set) {
    CodecContext ctx = with(state);
    set(ctx);
    send(*codec_, make_data("normal", 40), ctx);
    state.commit(ctx.role);
    EXPECT_EQ(state.pieces().size(), kept);
  };
  again([](CodecContext& c) { ++c.step; });
  again([](CodecContext& c) { ++c.micro; });
  EXPECT_THROW(send(*codec_, make_data("normal", 41), with(state)), UsageError);
}

TEST_P(Stateful, IsSavedToTheBit) {
  CodecState whole, first, second;
  const auto wanted = run(whole, 6);
  run(first, 3);
  second.restore(first.pieces());
  second.set_applied(Role::kGradient, first.applied(Role::kGradient));
  EXPECT_TRUE(same_bits(run(second, 3, 3), wanted));
  EXPECT_THROW(second.restore(first.pieces()), UsageError);  // Not empty.
  CodecState other;  // A codec that finds nothing of its own, and pieces that find none.
  other.restore(first.pieces());
  send(*make_codec("ef|int8"), make_data("normal", 100), with(other));
  EXPECT_THROW(other.commit(Role::kGradient), UsageError);
}

std::string label(const testing::TestParamInfo<std::string>& info) {
  std::string text = info.param;
  std::replace_if(
      text.begin(), text.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return text;
}
INSTANTIATE_TEST_SUITE_P(Specs, Stateful, testing::ValuesIn(stateful_specs()), label);

class Counter : public MemoryTracker {
 public:
  void on_allocate(MemoryKind kind, std::size_t bytes) override {
    EXPECT_EQ(kind, MemoryKind::kResidual);
    bytes_ += bytes;
  }
  void on_free(MemoryKind, std::size_t bytes) noexcept override { bytes_ -= bytes; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

TEST(CodecState, IsBookedAsResidual) {
  for (const auto& [spec, bytes] : {std::pair<std::string, std::size_t>{"ef|int4", 2 * 4 * 256},
                                    {"loco|int4", 2 * (256 + 8)},
                                    {"ef21|int4", 2 * 2 * 4 * 256}}) {
    Counter counter;
    {
      CodecState state(&counter);
      send(*make_codec(spec), make_data("normal", 256), with(state));
      EXPECT_EQ(counter.bytes(), bytes) << spec;
      state.commit(Role::kGradient);
      EXPECT_EQ(counter.bytes(), bytes);
    }
    EXPECT_EQ(counter.bytes(), 0U);
  }
}

TEST(CodecState, OneDecoratorWithStateIsEnough) {
  for (const char* bad : {"ef|ef|int4", "loco|ef21|int4", "ef|hadamard(32)|ef21|int4"}) {
    EXPECT_THROW(make_codec(bad), UsageError) << bad;
  }
  for (const char* bad : {"ef(1.5)|int4", "ef(x)|int4", "loco(reset=-1)|int4",
                          "ef(store=fp16)|int4", "ef21(1)|int4"}) {
    EXPECT_THROW(make_codec(bad), UsageError) << bad;
  }
}

/// Every part of a tensor of `numel`, encoded by each of `ranks` ranks, of numbers that a
/// rank's own variation makes.
void send_all(const Codec& codec, std::vector<std::unique_ptr<CodecState>>& states,
              std::size_t numel) {
  const std::size_t ranks = states.size(), chunk = (numel + ranks - 1) / ranks;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const auto x = make_data("normal", numel, r);
    for (std::uint32_t p = 0; p * chunk < numel; ++p) {
      CodecContext ctx = with(*states[r]);
      ctx.sender = r;
      ctx.part = p;
      const std::size_t n = std::min(chunk, numel - p * chunk);
      encode(codec, view(x).slice(p * chunk, n), ctx);
    }
    states[r]->commit(Role::kGradient);
  }
}
std::vector<std::unique_ptr<CodecState>> make_states(std::size_t ranks) {
  std::vector<std::unique_ptr<CodecState>> states;
  for (std::size_t r = 0; r < ranks; ++r) states.push_back(std::make_unique<CodecState>());
  return states;
}
std::vector<LogicalResidual> merge(const std::vector<std::unique_ptr<CodecState>>& states,
                                   std::size_t numel) {
  std::vector<std::vector<ResidualPiece>> pieces;
  for (const auto& s : states) pieces.push_back(s->pieces());
  return merge_residuals(pieces, [&](std::uint32_t) { return numel; });
}

TEST(CodecState, AnotherNumberOfRanksKeepsTheMeanThatIsStillToBeSent) {
  constexpr std::size_t numel = 103;
  const auto ef = make_codec("ef|int4:block=32");
  auto four = make_states(4);
  send_all(*ef, four, numel);
  const auto before = merge(four, numel);
  ASSERT_EQ(before.size(), 1U);
  ASSERT_EQ(before[0].values.size(), numel);
  // The mean, by hand, of one element: 30 is in part 1 of chunks of 26.
  double mean = 0;
  for (const auto& s : four) {
    for (const ResidualPiece& p : s->pieces()) {
      if (p.key.part == 1) mean += decode(*make_codec("fp32"), p.bytes, p.n)[4] / 4;
    }
  }
  EXPECT_NEAR(before[0].values[30], mean, 1e-7);
  EXPECT_NE(before[0].values[30], 0);
  for (const std::size_t ranks : {1U, 2U, 3U, 6U}) {
    auto other = make_states(ranks);
    for (auto& s : other) s->adopt(before, static_cast<int>(ranks));
    const std::size_t chunk = (numel + ranks - 1) / ranks;
    for (auto& s : other) {
      for (std::uint32_t p = 0; p * chunk < numel; ++p) {
        ResidualKey key = ResidualKey::of(context(), ef->spec());
        key.part = p;
        s->residual(key, std::min(chunk, numel - p * chunk), {});
      }
      s->commit(Role::kGradient);
    }
    const auto after = merge(other, numel);
    ASSERT_EQ(after.size(), 1U);
    EXPECT_TRUE(same_bits(after[0].values, before[0].values)) << ranks;
  }
}

TEST(CodecState, ReceiversOfAnotherNStartAsTheirSenders) {
  constexpr std::size_t numel = 64;
  const auto ef21 = make_codec("ef21|int4:block=32");
  auto four = make_states(4);
  send_all(*ef21, four, numel);
  const auto logical = merge(four, numel);
  CodecState sender, receiver;
  sender.adopt(logical, 1);
  receiver.adopt(logical, 1);
  CodecContext from = with(sender), to = with(receiver);
  from.part = to.part = 0;
  const Bytes wire = encode(*ef21, view(make_data("normal", numel)), from);
  CodecState unaware;
  CodecContext anew = with(unaware);
  anew.part = 0;
  EXPECT_FALSE(wire == encode(*ef21, view(make_data("normal", numel)), anew));
  std::vector<float> y(numel);
  ef21->decode_with(wire, to, mut_view(y));
  sender.commit(Role::kGradient);
  receiver.commit(Role::kGradient);
  EXPECT_TRUE(same_bits(only(sender), only(receiver)));
  EXPECT_TRUE(same_bits(only(sender), y));
}

}  // namespace
}  // namespace zeropp::quant
