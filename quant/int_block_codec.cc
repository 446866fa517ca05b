#include <cmath>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/error.h"
#include "quant/int_block.h"
#include "quant/spec_args.h"

namespace zeropp::quant {
namespace {

struct Named {
  std::string name;
  int bits;
  std::size_t default_block;
};

constexpr const char* kRoundings =
    "nearest, stochastic, correlated over a hop's senders, or shift (int2 to int8, "
    "scheme=asymmetric,scale=fp32: nearest on a lattice with a random shared offset)";

constexpr const char* kSpikes =
    "1: a block's smallest and largest number travel beside it (asymmetric, block <= 4096)";

class IntBlockCodec final : public Codec {
 public:
  IntBlockCodec(std::string spec, const IntBlockFormat& format)
      : spec_(std::move(spec)), format_(format) {}

  const std::string& spec() const override { return spec_; }

  CodecTraits traits() const override {
    CodecTraits t;
    t.block = format_.block;
    t.deterministic = !format_.stochastic();
    t.unbiased = format_.stochastic() && format_.scheme == BlockScheme::kSymmetric;
    // A step of scale, or half a step; 2^-12 steps more than covers the fp32 roundings of
    // scale, quotient and product. DeepSpeed's scale clips up to a whole step at +max.
    const bool whole_step = format_.stochastic() || format_.scheme == BlockScheme::kDeepspeed;
    t.max_error = ((whole_step ? 1.0 : 0.5) + 0x1p-12) / format_.divisor();
    return t;
  }

  WireBytes wire_bytes(std::size_t n) const override {
    const auto bits = static_cast<unsigned>(format_.bits);
    WireBytes w;
    w.scale = format_.blocks(n) * format_.kScaleBytes;
    w.payload = n / 8 * bits + n % 8 * bits / 8;
    w.padding = format_.wire_size(n) - w.scale - w.payload;
    return w;
  }

  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    const std::size_t size = checked("encode", wire.size(), x.n);
    with_noise(ctx, [&](const RoundingNoise* noise) {
      encode_blocks(format_, x, noise, wire.data());
    });
    return size;
  }

  void decode(std::span<const std::byte> wire, MutView out) const override {
    checked("decode", wire.size(), out.n);
    decode_blocks(format_, wire.data(), out);
  }

  void decode_add(std::span<const std::byte> wire, std::span<float> sum) const override {
    checked("decode_add", wire.size(), sum.size());
    decode_add_blocks(format_, wire.data(), sum);
  }

  void decode_sum(WireList wires, float divisor, MutView out) const override {
    check_sources("decode_sum", wires, out.n);
    decode_sum_blocks(format_, wires, divisor, out);
  }

  std::size_t reduce_encode(const Codec& from, WireList wires, std::size_t n, float divisor,
                            const CodecContext& ctx, std::span<std::byte> wire) const override {
    const auto* source = dynamic_cast<const IntBlockCodec*>(&from);
    if (source == nullptr) return Codec::reduce_encode(from, wires, n, divisor, ctx, wire);
    source->check_sources("reduce_encode", wires, n);
    const std::size_t size = checked("reduce_encode", wire.size(), n);
    with_noise(ctx, [&](const RoundingNoise* noise) {
      reduce_encode_blocks(source->format_, wires, n, divisor, format_, noise, wire.data());
    });
    return size;
  }

 private:
  std::size_t checked(std::string_view what, std::size_t found, std::size_t n) const {
    const std::uint64_t size = format_.wire_size(n);
    require_wire_size(spec_, what, found, size);
    return size;
  }
  void check_sources(std::string_view what, WireList wires, std::size_t n) const {
    if (wires.empty()) throw UsageError(spec_, "at least one source", "none");
    for (const auto& w : wires) checked(what, w.size(), n);
  }
  template <class Body>
  void with_noise(const CodecContext& ctx, const Body& body) const {
    if (!format_.stochastic()) return body(nullptr);
    const RoundingNoise noise(format_.rounding, ctx);
    body(&noise);
  }

  std::string spec_;
  IntBlockFormat format_;
};

CodecPtr make_int_block(const Named& named, const CodecSpec& spec) {
  const std::string scheme =
      choice_arg(spec, "scheme", "symmetric", {"symmetric", "deepspeed", "asymmetric"});
  const std::string scale = choice_arg(spec, "scale", "fp32", {"fp32", "fp16", "bf16", "e8m0"});
  if (scheme == "asymmetric" || scale != "fp32") {
    return make_int_plane(named.bits, named.default_block, spec);
  }
  refuse_spikes(spec);
  choice_arg(spec, "spikes", "0", {"0"});
  refuse_shift(spec);
  IntBlockFormat f;
  f.bits = named.bits;
  f.block = block_arg(spec, named.default_block);
  f.rounding = parse_rounding(
      choice_arg(spec, "rounding", "nearest", {"nearest", "stochastic", "correlated"}));
  f.scheme = scheme == "deepspeed" ? BlockScheme::kDeepspeed : BlockScheme::kSymmetric;
  // The block is always spelled out: it decides the bytes, and readers compare it first.
  std::string text = named.name + ":block=" + std::to_string(f.block);
  if (f.stochastic()) text += ",rounding=" + std::string(name(f.rounding));
  if (f.scheme == BlockScheme::kDeepspeed) text += ",scheme=deepspeed";
  return std::make_shared<const IntBlockCodec>(std::move(text), f);
}

CodecEntry int_block_entry(const Named& named) {
  const std::string& n = named.name;
  return {
      .name = n,
      .help = std::to_string(named.bits) + "-bit integers, one scale per block",
      .params = {{"block", std::to_string(named.default_block),
                  "numbers that share a scale, 1 to 2^30"},
                 {"rounding", "nearest", kRoundings},
                 {"scheme", "symmetric",
                  "symmetric: absmax/(2^(b-1)-1); deepspeed: absmax/2^(b-1), +max clipped; "
                  "asymmetric: minimum and step"},
                 {"scale", "fp32",
                  "fp32, or fp16, bf16, e8m0, rounded up so that nothing clips"},
                 {"spikes", "0", kSpikes}},
      .examples = {n, n + ":block=1", n + ":block=37,rounding=stochastic",
                   n + ":block=128,scheme=deepspeed",
                   n + ":block=256,rounding=stochastic,scheme=deepspeed",
                   n + ":block=37,rounding=correlated", n + ":rounding=shift,scheme=asymmetric",
                   n + ":block=300,scale=fp16,scheme=asymmetric,spikes=1",
                   n + ":scheme=asymmetric", n + ":block=37,scale=bf16",
                   n + ":block=64,rounding=stochastic,scale=e8m0",
                   n + ":block=32,scale=fp16,scheme=asymmetric"},
      .make = [named](const CodecSpec& spec) { return make_int_block(named, spec); }};
}

CodecEntry int_plane_entry(int bits, std::size_t block) {
  const std::string n = "int" + std::to_string(bits);
  const bool one = bits == 1;
  CodecEntry entry{
      .name = n,
      .help = std::to_string(bits) + "-bit integers in bit planes, one scale per block",
      .params = {{"block", std::to_string(block), "numbers that share a scale, 1 to 2^30"},
                 {"rounding", "nearest", kRoundings},
                 {"scheme", one ? "asymmetric" : "symmetric",
                  one ? "asymmetric: minimum and step"
                      : "symmetric: absmax/(2^(b-1)-1); asymmetric: minimum and step"},
                 {"scale", "fp32",
                  "fp32, or fp16, bf16, e8m0, rounded up so that nothing clips"},
                 {"spikes", "0", kSpikes}},
      .examples = {n, n + ":block=37,rounding=stochastic,scheme=asymmetric",
                   n + ":block=64,scale=bf16,scheme=asymmetric",
                   n + ":block=32,scale=e8m0,scheme=asymmetric",
                   n + ":rounding=correlated,scheme=asymmetric",
                   n + ":block=37,scale=bf16,scheme=asymmetric,spikes=1",
                   n + ":rounding=stochastic,scale=fp16,scheme=asymmetric,spikes=1"},
      .make = [=](const CodecSpec& spec) { return make_int_plane(bits, block, spec); }};
  if (!one) {
    entry.examples.push_back(n + ":block=32,scale=e8m0");
    entry.examples.push_back(n + ":block=37,rounding=stochastic,scale=fp16");
    entry.examples.push_back(n + ":block=1,scale=bf16");
    entry.examples.push_back(n + ":block=37,rounding=shift,scheme=asymmetric");
  }
  return entry;
}

}  // namespace

std::vector<CodecEntry> int_block_codecs() {
  std::vector<CodecEntry> entries{int_block_entry({"int8", 8, 2048}),
                                  int_block_entry({"int4", 4, 128})};
  for (const int bits : {7, 6, 5, 3, 2, 1}) entries.push_back(int_plane_entry(bits, 128));
  return entries;
}

}  // namespace zeropp::quant
