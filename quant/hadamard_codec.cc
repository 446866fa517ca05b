// hadamard(n): the codec behind sees rotated numbers, in which an outlier is spread over its
// group (SDP4Bit, 2024; QuaRot, 2024). random=yes flips signs first, so that over the draws the
// rotated numbers look normal whatever the input: what `eden` needs.
//
// The rotation is linear. A sum of wires is formed before it is undone, and between two hops of
// one rotation it is not undone at all: rotate once before the first hop, back after the last.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/decorator.h"
#include "quant/error.h"
#include "quant/hadamard.h"
#include "quant/spec_args.h"

namespace zeropp::quant {
namespace {

using Wire = std::span<const std::byte>;
using Wires = std::span<const Wire>;

class HadamardCodec final : public DecoratorCodec {
 public:
  HadamardCodec(const std::string& head, std::size_t group, bool random, CodecPtr behind)
      : DecoratorCodec(head, std::move(behind)), group_(group), random_(random) {}

  CodecTraits traits() const override {
    CodecTraits t = inner_traits();
    const auto n = static_cast<double>(group_);
    // A rotated number errs by max_error * absmax at most, and n of them add up. The rest are
    // the roundings of 2 log2 n stages, and of numbers that 1/n makes subnormal.
    t.max_error = n * (t.max_error + (2 * std::log2(n) + 4) * 0x1p-24);
    t.floor = n * (t.floor + (n + 1) * 0x1p-149);
    t.nan = NanPolicy::kPoisonBlock;
    t.block = std::max(t.block, group_);
    t.deterministic = t.deterministic && !random_;
    t.sums_transformed = true;
    return t;
  }

  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    check_wire("encode", wire.size(), max_wire_size(x.n));
    Tensor y = scratch(x.n);
    const Signs signs(*this, x.n, random_ ? word_of(ctx) : 0);
    rotate(signs.rotation(), x, y.f32());
    const std::size_t header = write_header(x.n, ctx, wire);
    return header + inner().encode(y.view(), ctx, wire.subspan(header));
  }

  void decode(Wire wire, MutView out) const override {
    finish(out, word_in("decode", wire, out.n),
           [&](MutView y) { inner().decode(body(wire, out.n), y); });
  }
  void decode_with(Wire wire, const CodecContext& ctx, MutView out) const override {
    finish(out, word_in("decode", wire, out.n),
           [&](MutView y) { inner().decode_with(body(wire, out.n), ctx, y); });
  }
  void decode_sum(Wires wires, float divisor, MutView out) const override {
    if (!one_rotation(wires, out.n)) return Codec::decode_sum(wires, divisor, out);
    const std::vector<Wire> behind = bodies(wires, out.n);
    finish(out, word_in("decode_sum", wires[0], out.n),
           [&](MutView y) { inner().decode_sum(behind, divisor, y); });
  }
  void decode_sum_with(Wires wires, float divisor, const CodecContext& ctx,
                       MutView out) const override {
    if (!traits().receiver_state) return decode_sum(wires, divisor, out);
    if (!one_rotation(wires, out.n))
      throw UsageError(spec(), "wires of one rotation", "others");
    const std::vector<Wire> behind = bodies(wires, out.n);
    finish(out, word_in("decode_sum", wires[0], out.n),
           [&](MutView y) { inner().decode_sum_with(behind, divisor, ctx, y); });
  }

  std::size_t reduce_encode(const Codec& from, Wires wires, std::size_t n, float divisor,
                            const CodecContext& ctx, std::span<std::byte> wire) const override {
    const auto* source = dynamic_cast<const HadamardCodec*>(&from);
    const bool stays =
        source != nullptr && source->group_ == group_ && source->random_ == random_ &&
        source->one_rotation(wires, n) &&
        (!random_ || source->word_in("reduce_encode", wires[0], n) == word_of(ctx));
    if (!stays) return Codec::reduce_encode(from, wires, n, divisor, ctx, wire);
    check_wire("reduce_encode", wire.size(), max_wire_size(n));
    const std::size_t header = write_header(n, ctx, wire);
    return header + inner().reduce_encode(source->inner().decoder(), source->bodies(wires, n),
                                          n, divisor, ctx, wire.subspan(header));
  }

 private:
  /// The signs of a span, drawn once.
  class Signs {
   public:
    Signs(const HadamardCodec& codec, std::size_t n, std::uint32_t word)
        : group_(codec.group_) {
      if (!codec.random_) return;
      signs_.resize(std::min(n, Rotation::kMaxGroup));
      rotation_signs(word, signs_);
    }
    Rotation rotation() const { return {.group = group_, .signs = signs_}; }

   private:
    std::size_t group_;
    std::vector<float> signs_;
  };

  std::uint64_t header_bytes(std::size_t) const override {
    return random_ ? sizeof(std::uint32_t) : 0;
  }
  /// Equal on all ranks and hops, so that sums can stay rotated; new for each micro-step.
  static std::uint32_t word_of(const CodecContext& ctx) {
    return Philox({.seed = ctx.seed,
                   .purpose = Purpose::kRotation,
                   .tensor = ctx.tensor,
                   .step = ctx.step,
                   .micro = ctx.micro,
                   .part = ctx.part})
        .word(0);
  }
  std::size_t write_header(std::size_t n, const CodecContext& ctx,
                           std::span<std::byte> wire) const {
    const std::size_t bytes = header_size(n);
    if (bytes != 0) {
      const std::uint32_t word = word_of(ctx);
      std::memcpy(wire.data(), &word, bytes);
    }
    return bytes;
  }
  std::uint32_t word_in(std::string_view what, Wire wire, std::size_t n) const {
    const std::size_t bytes = header_size(n);
    check_wire(what, wire.size(), bytes);
    std::uint32_t word = 0;
    if (bytes != 0) std::memcpy(&word, wire.data(), bytes);
    return word;
  }
  bool one_rotation(Wires wires, std::size_t n) const {
    return !wires.empty() && std::all_of(wires.begin(), wires.end(), [&](Wire wire) {
      return word_in("decode_sum", wire, n) == word_in("decode_sum", wires[0], n);
    });
  }
  Wire body(Wire wire, std::size_t n) const { return wire.subspan(header_size(n)); }
  std::vector<Wire> bodies(Wires wires, std::size_t n) const {
    std::vector<Wire> behind;
    behind.reserve(wires.size());
    for (const Wire wire : wires) behind.push_back(body(wire, n));
    return behind;
  }

  /// out = rotated back of what `fill` writes; in place where out is fp32.
  template <class Fill>
  void finish(MutView out, std::uint32_t word, const Fill& fill) const {
    const Signs signs(*this, out.n, word);
    const bool direct = out.dtype == Dtype::kF32 &&
                        reinterpret_cast<std::uintptr_t>(out.data) % alignof(float) == 0;
    Tensor room;
    if (!direct) room = scratch(out.n);
    const MutView y = direct ? out : room.view();
    fill(y);
    unrotate(signs.rotation(), static_cast<const float*>(y.data), out);
  }

  std::size_t group_;
  bool random_;
};

CodecPtr make_hadamard(const CodecSpec& spec, CodecPtr inner) {
  const auto group = static_cast<std::size_t>(count_arg(spec, "n", 32, 2, Rotation::kMaxGroup));
  const std::string text = std::to_string(group);
  if ((group & (group - 1)) != 0) {
    throw UsageError("codec hadamard", "n to be a power of two", "'" + text + "'");
  }
  const CodecTraits t = inner->traits();
  if (t.block != kWholeSpan && t.block % group != 0 && group % t.block != 0) {
    throw UsageError("codec hadamard", "a block that is a multiple of n = " + text,
                     "'" + inner->spec() + "'");
  }
  const bool random = choice_arg(spec, "random", "no", {"no", "yes"}) == "yes";
  if (random && t.stateful) {
    throw UsageError("codec hadamard",
                     "state outside a rotation that is drawn anew, as in "
                     "'ef|hadamard(32,random=yes)|int4'",
                     "'" + inner->spec() + "' behind it");
  }
  return std::make_shared<const HadamardCodec>(
      "hadamard(" + text + (random ? ",random=yes)" : ")"), group, random, std::move(inner));
}

}  // namespace

std::vector<CodecEntry> hadamard_codecs() {
  return {{.name = "hadamard",
           .help = "Walsh-Hadamard rotation of groups of n numbers: spreads outliers",
           .params = {{"n", "32", "numbers that are rotated together, a power of two to 4096"},
                      {"random", "no",
                       "yes: signs drawn anew for each tensor and step, alike on all ranks; "
                       "4 bytes a span"}},
           .examples = {"hadamard(32)|int4:block=128", "hadamard(2)|int8:block=32",
                        "hadamard(64)|nvfp4", "hadamard(256)|int8:block=256",
                        "hadamard(16,random=yes)|int4:block=32,rounding=stochastic",
                        "hadamard(64,random=yes)|int8", "hadamard(32)|ef|int4:block=32",
                        "hadamard(8)|ef21|mxfp4"},
           .make = {},
           .decorate = make_hadamard}};
}

}  // namespace zeropp::quant
