// topk: the largest magnitudes of every chunk with their places; everything else is zero.
//
// A chunk of m numbers (m = `chunk`, or fewer at the end of a span) keeps
// K(m) = ceil(k * m / chunk) of them: those with the largest |x|, of equal ones the first. Its
// bytes:
//   value=fp16|bf16   1 byte   E8M0 exponent e + 127: values are of x * 2^-e (metadata)
//   indices           K places within the chunk, ascending (metadata): u16, or packed with
//                     ceil(log2 chunk) bits each, the first in the lowest bits
//   values            K numbers
// e makes the chunk's largest magnitude lie in [2^14, 2^15) for fp16 and [1, 2) for bf16 (as
// far as -127 <= e <= 127 allows), so that no value overflows and none underflows that matters.
// -0 travels as 0. If a number of the chunk is not finite, the indices are 0, 1, ... and all
// values NaN: a chunk whose first value is NaN is NaN. Decoded values are clamped to +-FLT_MAX.
//
// Aji and Heafield, "Sparse communication for distributed gradient descent", 2017. Dropping the
// rest leaves ||x - y||^2 <= (1 - K/m) ||x||^2 (Stich et al., "Sparsified SGD with memory",
// 2018), less 2^-22 or 2^-16 ||x||^2 for the values' rounding.

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "quant/builtin_codecs.h"
#include "quant/chunked_codec.h"
#include "quant/convert.h"
#include "quant/error.h"
#include "quant/reference.h"
#include "quant/spec_args.h"

namespace zeropp::quant {
namespace {

constexpr std::size_t kMaxChunk = 65536;  // Indices are u16.
constexpr std::uint32_t kInfinity = 0x7F800000;
constexpr float kNan = std::bit_cast<float>(0x7FC00000);

struct TopkFormat {
  std::size_t k = 1, chunk = 4096;
  Dtype value = Dtype::kF16;
  bool packed = true;

  std::size_t kept(std::size_t m) const { return (k * m + chunk - 1) / chunk; }
  unsigned index_bits() const {
    return packed ? static_cast<unsigned>(std::bit_width(chunk - 1)) : 16;
  }
  std::size_t index_bytes(std::size_t m) const { return (kept(m) * index_bits() + 7) / 8; }
  std::size_t scale_bytes() const { return value == Dtype::kF32 ? 0 : 1; }
};

/// Numbers of a fixed width in a run of bytes, the first in the lowest bits.
class BitWriter {
 public:
  BitWriter(std::byte* to, unsigned bits) : to_(to), bits_(bits) {}
  void put(std::uint32_t x) {
    held_ |= std::uint64_t{x} << count_;
    for (count_ += bits_; count_ >= 8; count_ -= 8, held_ >>= 8) {
      *to_++ = static_cast<std::byte>(held_ & 0xFF);
    }
  }
  void flush() {
    if (count_ > 0) *to_ = static_cast<std::byte>(held_);
  }

 private:
  std::byte* to_;
  unsigned bits_, count_ = 0;
  std::uint64_t held_ = 0;
};

class BitReader {
 public:
  BitReader(const std::byte* from, unsigned bits) : from_(from), bits_(bits) {}
  std::uint32_t get() {
    for (; count_ < bits_; count_ += 8) {
      held_ |= static_cast<std::uint64_t>(*from_++) << count_;
    }
    const auto x = static_cast<std::uint32_t>(held_ & ((std::uint64_t{1} << bits_) - 1));
    held_ >>= bits_;
    count_ -= bits_;
    return x;
  }

 private:
  const std::byte* from_;
  unsigned bits_, count_ = 0;
  std::uint64_t held_ = 0;
};

/// The k-th largest of n finite magnitudes, as bits: digit by digit from a histogram of those
/// that share the digits before.
std::uint32_t kth_largest(const std::uint32_t* magnitude, std::size_t n, std::size_t k) {
  std::uint32_t found = 0;
  for (const auto& [shift, bits] : {std::pair{20, 11}, {10, 10}, {0, 10}}) {
    std::array<std::uint32_t, 2048> counts{};
    const std::uint32_t mask = (1U << bits) - 1;
    const int above = shift + bits;
    for (std::size_t i = 0; i < n; ++i) {
      if (magnitude[i] >> above == found >> above) ++counts[(magnitude[i] >> shift) & mask];
    }
    std::uint32_t digit = mask;
    while (k > counts[digit]) k -= counts[digit--];
    found |= digit << shift;
  }
  return found;
}

class TopkCodec final : public ChunkedCodec {
 public:
  TopkCodec(std::string text, const TopkFormat& format)
      : ChunkedCodec(std::move(text), format.chunk), format_(format) {}

  CodecTraits traits() const override {
    CodecTraits t;
    t.block = format_.chunk;
    t.max_error = 1;
    const double rounding = format_.value == Dtype::kF32   ? 0
                            : format_.value == Dtype::kF16 ? 0x1p-21
                                                           : 0x1p-15;
    const double share = static_cast<double>(format_.k) / static_cast<double>(format_.chunk);
    t.contraction = std::max(0.0, share - rounding);
    return t;
  }

  void decode(std::span<const std::byte> wire, MutView out) const override {
    for_chunks(
        "decode", wire, out.n, [&](std::size_t first, std::size_t m, const std::byte* from) {
          const MutView part = out.slice(first, m);
          std::fill_n(part.as_bytes().data(), part.bytes(), std::byte{0});
          for_values(from, m, [&](std::size_t i, float v) { reference::store(part, i, v); });
        });
  }

  /// Touches what was sent alone: where nothing came a sum keeps even a -0 or a NaN's payload.
  void decode_add(std::span<const std::byte> wire, std::span<float> sum) const override {
    for_chunks("decode_add", wire, sum.size(),
               [&](std::size_t first, std::size_t m, const std::byte* from) {
                 float* part = sum.data() + first;
                 for_values(from, m, [&](std::size_t i, float v) {
                   part[i] = reference::canonical(part[i] + v);
                 });
               });
  }

 protected:
  WireBytes chunk_bytes(std::size_t m) const override {
    const std::size_t kept = format_.kept(m);
    const std::size_t whole = kept * format_.index_bits() / 8;
    return {.payload = kept * size_of(format_.value),
            .scale = format_.scale_bytes() + whole,
            .padding = format_.index_bytes(m) - whole};
  }

  void encode_chunk(ConstView x, std::byte* wire) const override {
    thread_local std::vector<float> numbers;
    thread_local std::vector<std::uint32_t> magnitude;
    numbers.resize(x.n);
    magnitude.resize(x.n);
    convert(x, mut_view(numbers));
    std::uint32_t top = 0;
    for (std::size_t i = 0; i < x.n; ++i) {
      magnitude[i] = std::bit_cast<std::uint32_t>(numbers[i]) & 0x7FFFFFFF;
      top = std::max(top, magnitude[i]);
    }
    write(numbers.data(), magnitude.data(), x.n, top, wire);
  }

 private:
  /// e as above.
  int exponent(std::uint32_t top) const {
    if (format_.value == Dtype::kF32 || top == 0) return 0;
    const int e = std::ilogb(std::bit_cast<float>(top));
    return std::clamp(format_.value == Dtype::kF16 ? e - 14 : e, -127, 127);
  }

  void write(const float* x, const std::uint32_t* magnitude, std::size_t m, std::uint32_t top,
             std::byte* wire) const {
    const bool finite = top < kInfinity;
    const std::size_t kept = format_.kept(m);
    const int e = finite ? exponent(top) : 0;
    if (format_.scale_bytes() != 0) wire[0] = static_cast<std::byte>(e + 127);
    std::byte* places = wire + format_.scale_bytes();
    BitWriter indices(places, format_.index_bits());
    std::byte* values = places + format_.index_bytes(m);
    const auto put = [&](std::size_t i, float v) {
      indices.put(static_cast<std::uint32_t>(i));
      reference::store({values, format_.value, 1}, 0, v + 0.0F);
      values += size_of(format_.value);
    };
    if (!finite) {
      for (std::size_t i = 0; i < kept; ++i) put(i, kNan);
    } else {
      const float factor = std::ldexp(1.0F, -e / 2), rest = std::ldexp(1.0F, -e - -e / 2);
      const std::uint32_t least = kth_largest(magnitude, m, kept);
      std::size_t ties = kept;
      for (std::size_t i = 0; i < m; ++i) ties -= magnitude[i] > least ? 1 : 0;
      for (std::size_t i = 0; i < m; ++i) {
        if (magnitude[i] < least || (magnitude[i] == least && ties == 0)) continue;
        if (magnitude[i] == least) --ties;
        put(i, x[i] * factor * rest);  // 2^127 * 2^127 in two steps; exact but for fp16's own.
      }
    }
    indices.flush();
  }

  /// use(place within the chunk, value) for what was sent, all m places as NaN if that is what
  /// the chunk says. Places beyond the chunk, which no encoder writes, are passed over.
  template <class Use>
  void for_values(const std::byte* wire, std::size_t m, const Use& use) const {
    const std::byte* places = wire + format_.scale_bytes();
    const std::byte* values = places + format_.index_bytes(m);
    const int e = format_.scale_bytes() == 0 ? 0 : static_cast<int>(wire[0]) - 127;
    const double scale =
        e > 127 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, e);
    constexpr double kMax = FLT_MAX;
    const auto value = [&](std::size_t j) {
      const ConstView all{values, format_.value, format_.kept(m)};
      const double v = reference::load(all, j) * scale;
      const double within = v > kMax ? kMax : v < -kMax ? -kMax : v;
      return reference::canonical(static_cast<float>(within)) + 0.0F;
    };
    if (std::isnan(value(0))) {
      for (std::size_t i = 0; i < m; ++i) use(i, kNan);
      return;
    }
    BitReader indices(places, format_.index_bits());
    for (std::size_t j = 0; j < format_.kept(m); ++j) {
      const std::uint32_t i = indices.get();
      if (i < m) use(i, value(j));
    }
  }

  TopkFormat format_;
};

std::size_t kept_arg(const CodecSpec& spec, std::size_t chunk) {
  const auto ratio = spec.args.find("ratio");
  if (ratio == spec.args.end()) {
    return count_arg(spec, "k", (chunk + 99) / 100, 1, chunk);
  }
  if (spec.args.count("k") != 0) {
    throw UsageError("codec topk", "one of k and ratio", "both");
  }
  double share = 0;
  const std::string& text = ratio->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc{} || end != text.data() + text.size() || !(share > 0 && share <= 1)) {
    throw UsageError("codec topk", "ratio=a share above 0, up to 1", "'" + text + "'");
  }
  const auto k = static_cast<std::size_t>(std::ceil(share * static_cast<double>(chunk)));
  return std::clamp<std::size_t>(k, 1, chunk);
}

CodecPtr make_topk(const CodecSpec& spec) {
  TopkFormat f;
  f.chunk = count_arg(spec, "chunk", 4096, 1, kMaxChunk);
  f.k = kept_arg(spec, f.chunk);
  f.value = parse_dtype(choice_arg(spec, "value", "fp16", {"fp16", "bf16", "fp32"}));
  f.packed = choice_arg(spec, "index", "packed", {"packed", "u16"}) == "packed";
  std::string text = "topk:k=" + std::to_string(f.k) + ",chunk=" + std::to_string(f.chunk);
  if (!f.packed) text += ",index=u16";
  if (f.value != Dtype::kF16) text += ",value=" + std::string(name(f.value));
  return std::make_shared<const TopkCodec>(std::move(text), f);
}

}  // namespace

std::vector<CodecEntry> topk_codecs() {
  return {{.name = "topk",
           .help = "the largest magnitudes of every chunk and their places, for use with ef",
           .params = {{"k", "1 % of the chunk",
                       "numbers kept of a chunk; of a short last one its share, rounded up"},
                      {"ratio", "0.01", "instead of k: share of a chunk, rounded up"},
                      {"chunk", "4096", "numbers that share k, 1 to 65536"},
                      {"value", "fp16", "fp16 or bf16 (under a power of two a chunk), or fp32"},
                      {"index", "packed", "packed: ceil(log2 chunk) bits; u16"}},
           .examples = {"topk", "topk:k=5,chunk=64,value=fp32", "topk:ratio=0.1,chunk=1000",
                        "topk:k=7,chunk=100,value=bf16,index=u16", "topk:ratio=1,chunk=37"},
           .make = make_topk}};
}

}  // namespace zeropp::quant
