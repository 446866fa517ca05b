// Error feedback: what the codec behind loses in one step is sent in the next.
//
//   ef    c = x + beta e;  send Q(c);  e = c - Q(c)
//         Seide et al., INTERSPEECH 2014; Karimireddy et al., ICML 2019 (beta = 1)
//   loco  c = x + e;       send Q(c);  e = beta e + (1 - beta) (c - Q(c)), kept in int8 blocks,
//         zeroed every `reset` steps
//         Xie et al., LoCo, 2024, as coded in DeepSpeed (whose reset counts tensors)
//
// A residual belongs to (sender, tensor, part, hop), so every hop has its own.

#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/codec_state.h"
#include "quant/convert.h"
#include "quant/decorator.h"
#include "quant/error.h"
#include "quant/spec_args.h"

namespace zeropp::quant {
namespace {

/// c = x + use e;  e = keep e + (1 - keep) (c - Q(c)).
struct FeedbackRule {
  float use = 1, keep = 0;
  bool int8 = false;
  std::uint64_t reset = 0;
};

class FeedbackCodec final : public DecoratorCodec {
 public:
  FeedbackCodec(const std::string& head, const FeedbackRule& rule, CodecPtr behind)
      : DecoratorCodec(head, std::move(behind)),
        rule_(rule),
        kept_(rule.int8 ? make_codec(kResidualSpec) : nullptr) {}

  CodecTraits traits() const override {
    CodecTraits t = inner_traits();
    t.stateful = true;
    t.unbiased = false;  // Of x; it is x + e that the codec behind codes.
    return t;
  }

  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    if (ctx.state == nullptr) throw UsageError(spec(), "a state in the context", "none");
    check_wire("encode", wire.size(), max_wire_size(x.n));
    Residual& residual = ctx.state->residual(ResidualKey::of(ctx, spec()), x.n,
                                             {.codec = kept_.get(), .reset = rule_.reset});
    const float scale = ctx.state->scale(ctx.role);
    Tensor room, sum = scratch(x.n), sent = scratch(x.n);
    const float* e = residual.read(room);
    convert(x, sum.view());
    float* c = sum.f32();
    const float use = rule_.use * scale;
    for (std::size_t i = 0; i < x.n; ++i) c[i] += use * e[i];
    const std::size_t bytes = inner().encode(sum.view(), ctx, wire);
    inner().decode(wire.first(bytes), sent.view());
    const float* q = sent.f32();
    const float keep = rule_.keep, take = 1 - rule_.keep;
    for (std::size_t i = 0; i < x.n; ++i) c[i] = keep * e[i] + take * ((c[i] - q[i]) / scale);
    residual.write(c);
    return bytes;
  }

  // What arrives is what the codec behind sent.
  void decode(std::span<const std::byte> wire, MutView out) const override {
    inner().decode(wire, out);
  }
  void decode_add(std::span<const std::byte> wire, std::span<float> sum) const override {
    inner().decode_add(wire, sum);
  }
  void decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                  MutView out) const override {
    inner().decode_sum(wires, divisor, out);
  }
  const Codec& decoder() const override { return inner().decoder(); }

 private:
  static constexpr const char* kResidualSpec = "int8:block=128";

  FeedbackRule rule_;
  CodecPtr kept_;
};

constexpr std::uint64_t kMaxReset = 1'000'000'000;

CodecPtr make_feedback(const CodecSpec& spec, CodecPtr inner) {
  refuse_state(spec.name, *inner);
  const bool loco = spec.name == "loco";
  const double beta = number_arg(spec, "beta", loco ? 0.8 : 1.0, 0, 1);
  const std::uint64_t reset = count_arg(spec, "reset", loco ? 1024 : 0, 0, kMaxReset);
  const std::string store = choice_arg(spec, "store", loco ? "int8" : "fp32", {"fp32", "int8"});
  FeedbackRule rule{.int8 = store == "int8", .reset = reset};
  (loco ? rule.keep : rule.use) = static_cast<float>(beta);
  std::string head = spec.name + "(beta=" + number_text(beta);
  if (loco || reset != 0) head += ",reset=" + std::to_string(reset);
  if (rule.int8 != loco) head += ",store=" + store;
  return std::make_shared<const FeedbackCodec>(head + ")", rule, std::move(inner));
}

CodecEntry feedback_entry(const std::string& name, const std::string& help, bool loco) {
  return {.name = name,
          .help = help,
          .params = {{"beta", loco ? "0.8" : "1",
                      loco ? "share of the old residual that stays, 0 to 1"
                           : "share of the residual that is added, 0 to 1"},
                     {"reset", loco ? "1024" : "0",
                      "steps after which residuals are zeroed; 0: never"},
                     {"store", loco ? "int8" : "fp32",
                      "fp32, or int8 in blocks of 128 with fp32 scales"}},
          .examples = loco ? std::vector<std::string>{"loco|int4:block=32",
                                                      "loco(store=fp32)|int8:block=64"}
                           : std::vector<std::string>{"ef(0.5,reset=3)|int4:block=32",
                                                      "ef|hadamard(64,random=yes)|int8",
                                                      "ef(store=int8)|hadamard(16)|mxfp4"},
          .make = {},
          .decorate = make_feedback};
}

}  // namespace

std::vector<CodecEntry> feedback_codecs() {
  return {
      feedback_entry("ef", "error feedback: sends x + beta e, keeps what is lost", false),
      feedback_entry(
          "loco", "error feedback with a moving mean in int8 that is zeroed at times", true)};
}

}  // namespace zeropp::quant
