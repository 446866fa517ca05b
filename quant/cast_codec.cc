// Plain casts: the wire holds the numbers themselves, little-endian, in the codec's dtype.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/convert.h"
#include "quant/error.h"

namespace zeropp::quant {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kChunk = 1024;

std::uint64_t count_underflow(ConstView x, Dtype wire) {
  const std::uint32_t limit = underflow_limit(wire);
  if (limit == 0 || x.dtype == wire) return 0;
  std::array<float, kChunk> chunk;
  std::uint64_t count = 0;
  for (std::size_t first = 0; first < x.n; first += kChunk) {
    const std::size_t m = std::min(kChunk, x.n - first);
    convert(x.slice(first, m), mut_view(std::span(chunk).first(m)));
    std::uint32_t in_chunk = 0;
    for (std::size_t i = 0; i < m; ++i) {
      const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(chunk[i]) & 0x7FFFFFFF;
      in_chunk += magnitude - 1 < limit ? 1U : 0U;  // Zero wraps past the limit.
    }
    count += in_chunk;
  }
  return count;
}

class CastCodec final : public Codec {
 public:
  CastCodec(std::string spec, Dtype dtype) : spec_(std::move(spec)), dtype_(dtype) {}

  const std::string& spec() const override { return spec_; }
  CodecTraits traits() const override {
    CodecTraits t;
    t.exact = true;
    t.nan = NanPolicy::kPreserve;
    // Half an ulp at the block's largest (and only) element; subnormal results lie beyond it.
    t.max_error = dtype_ == Dtype::kF32 ? 0 : dtype_ == Dtype::kBF16 ? 0x1p-8 : 0x1p-11;
    return t;
  }
  WireBytes wire_bytes(std::size_t n) const override {
    return {.exact = static_cast<std::uint64_t>(n) * size_of(dtype_)};
  }
  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    require_wire("encode", wire.size(), x.n);
    convert(x, {wire.data(), dtype_, x.n});
    if (ctx.underflow != nullptr) *ctx.underflow += count_underflow(x, dtype_);
    return x.n * size_of(dtype_);
  }
  void decode(std::span<const std::byte> wire, MutView out) const override {
    convert(source(wire, out.n), out);
  }
  void decode_add(std::span<const std::byte> wire, std::span<float> sum) const override {
    accumulate(mut_view(sum), source(wire, sum.size()));
  }
  void decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                  MutView out) const override {
    if (wires.empty()) throw UsageError("decode_sum", "at least one source", "none");
    std::array<float, kChunk> chunk;
    for (const auto& wire : wires) require_wire("decode_sum", wire.size(), out.n);
    for (std::size_t first = 0; first < out.n; first += kChunk) {
      const std::size_t m = std::min(kChunk, out.n - first);
      const MutView sum = mut_view(std::span(chunk).first(m));
      convert(source(wires[0], out.n).slice(first, m), sum);
      for (const auto& wire : wires.subspan(1)) {
        accumulate(sum, source(wire, out.n).slice(first, m));
      }
      divide(sum, divisor, out.slice(first, m));
    }
  }

 private:
  void require_wire(const char* what, std::size_t bytes, std::size_t n) const {
    require_wire_size(spec_, what, bytes, n * size_of(dtype_));
  }
  ConstView source(std::span<const std::byte> wire, std::size_t n) const {
    require_wire("decode", wire.size(), n);
    return {wire.data(), dtype_, n};
  }

  std::string spec_;
  Dtype dtype_;
};

CodecEntry cast_entry(Dtype dtype, std::string help) {
  const std::string text(name(dtype));
  return {.name = text,
          .help = std::move(help),
          .params = {},
          .examples = {text},
          .make = [text, dtype](const CodecSpec&) {
            return std::make_shared<const CastCodec>(text, dtype);
          }};
}

}  // namespace

CodecPtr identity_codec(Dtype wire_dtype) {
  return std::make_shared<const CastCodec>("identity", wire_dtype);
}

void require_wire_size(std::string_view spec, std::string_view what, std::size_t found,
                       std::size_t needed) {
  if (found >= needed) return;
  throw UsageError(std::string(spec) + " " + std::string(what),
                   "a wire of at least " + std::to_string(needed) + " bytes",
                   std::to_string(found));
}

std::vector<CodecEntry> cast_codecs() {
  std::vector<CodecEntry> entries;
  entries.push_back({.name = "identity",
                     .help = "exact: a cast to the communication data type",
                     .params = {{"dtype", "the wire dtype", "fp32, bf16 or fp16"}},
                     .examples = {"identity", "identity:dtype=bf16", "identity:dtype=fp16"},
                     .make = [](const CodecSpec& spec) -> CodecPtr {
                       const auto dtype = spec.args.find("dtype");
                       if (dtype == spec.args.end()) return identity_codec(Dtype::kF32);
                       const Dtype d = parse_dtype(dtype->second);
                       return std::make_shared<const CastCodec>(
                           "identity:dtype=" + std::string(name(d)), d);
                     }});
  entries.push_back(cast_entry(Dtype::kF32, "exact: fp32 on the wire"));
  entries.push_back(cast_entry(Dtype::kBF16, "exact: bf16 on the wire, nearest even"));
  entries.push_back(cast_entry(Dtype::kF16, "exact: fp16 on the wire, nearest even"));
  return entries;
}

}  // namespace zeropp::quant
