// lossless: numbers bit for bit with their exponents in a canonical Huffman code, the "free"
// compression that lossy codecs should be compared with (exponents of bf16 weights and
// gradients hold 2.5 to 3 bits of entropy). Variable rate.
//
// Numbers travel in the dtype of the encoder's view, or cast to `dtype` first. Bytes of a span:
//   nothing   every number is +0; else a byte: bits 0-1 dtype (0 fp32, 1 bf16, 2 fp16), bit 2
//             form, other bits 0
//   form 0    the numbers as they are
//   form 1    the least and the largest exponent field (2 bytes); if they differ the code
//             lengths of all in between, a nibble each, the first in the low bits, 0 = does not
//             occur; the rests of the numbers; the codes of their exponents (prefix_code.h)
// The rest of a number is sign above mantissa: 8 bits (bf16), 11 (fp16) or 24 (fp32). Its
// lowest 8 (fp32: 16) lie as bytes one after the other; the upper 3 (fp32: 8) of all numbers
// follow in groups of 128 as in block_layout.h. Form 1 is taken where it is shorter. Malformed
// bytes are a TransportError.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "quant/block_layout.h"
#include "quant/builtin_codecs.h"
#include "quant/convert.h"
#include "quant/error.h"
#include "quant/memory.h"
#include "quant/prefix_code.h"
#include "quant/spec_args.h"

namespace zeropp::quant {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kGroup = BlockLayout::kGroup;
constexpr std::size_t kTile = 4096;
constexpr int kCoded = 4;  // Form 1 in the first byte.

/// Where the fields of a dtype lie. kLow bits of the rest are bytes, kHigh are groups of codes.
template <class WordT, Dtype kType, int kExponentBits, int kMantissaBits, int kLowBits>
struct Fields {
  using Word = WordT;
  static constexpr Dtype kDtype = kType;
  static constexpr int kMantissa = kMantissaBits;
  static constexpr unsigned kExponents = 1U << kExponentBits;
  static constexpr int kLow = kLowBits, kHigh = kMantissaBits + 1 - kLowBits;

  static unsigned exponent(Word w) {
    return (static_cast<unsigned>(w) >> kMantissa) & (kExponents - 1);
  }
  static unsigned rest(Word w) {
    const auto bits = static_cast<unsigned>(w);
    return (bits & ((1U << kMantissa) - 1)) | (bits >> (8 * sizeof(Word) - 1) << kMantissa);
  }
  static Word join(unsigned exponent, unsigned rest) {
    const unsigned sign = rest >> kMantissa << (8 * sizeof(Word) - 1);
    return static_cast<Word>((rest & ((1U << kMantissa) - 1)) | exponent << kMantissa | sign);
  }
  static std::uint64_t low_bytes(std::uint64_t n) { return n * (kLow / 8); }
  static std::uint64_t rest_bytes(std::uint64_t n) {
    const BlockLayout high{.bits = kHigh, .block = kWholeSpan};
    return low_bytes(n) + (kHigh == 0 ? 0 : high.packed(n));
  }
};
using Fp32 = Fields<std::uint32_t, Dtype::kF32, 8, 23, 16>;
using Bf16 = Fields<std::uint16_t, Dtype::kBF16, 8, 7, 8>;
using Fp16 = Fields<std::uint16_t, Dtype::kF16, 5, 10, 8>;

template <class Use>
auto with_fields(Dtype dtype, const Use& use) {
  switch (dtype) {
    case Dtype::kBF16:
      return use(Bf16());
    case Dtype::kF16:
      return use(Fp16());
    case Dtype::kF32:
      break;
  }
  return use(Fp32());
}

template <class Word>
Word load(const std::byte* from, std::size_t i) {
  Word w;
  std::memcpy(&w, from + i * sizeof(Word), sizeof(Word));
  return w;
}

[[noreturn]] void malformed(const char* what) {
  throw TransportError(std::string("[codec lossless] malformed bytes: ") + what);
}

/// How a span is coded in form 1.
struct Plan {
  unsigned lo = 0, hi = 0;
  CodeLengths lengths{};
  std::uint64_t code_bytes = 0;
  bool zeros = false;  ///< All numbers are +0.
  std::size_t table_bytes() const { return 2 + (lo == hi ? 0 : (hi - lo) / 2 + 1); }
};

template <class F>
Plan make_plan(const std::byte* x, std::size_t n) {
  using Word = typename F::Word;
  std::array<std::array<std::uint64_t, 256>, 4> partial{};
  Word any = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Word w = load<Word>(x, i);
    any = static_cast<Word>(any | w);
    ++partial[i % 4][F::exponent(w)];
  }
  std::array<std::uint64_t, 256> counts{};
  for (const auto& p : partial) {
    for (std::size_t e = 0; e < counts.size(); ++e) counts[e] += p[e];
  }
  Plan plan;
  plan.zeros = any == 0;
  plan.hi = 255;
  while (plan.lo < 255 && counts[plan.lo] == 0) ++plan.lo;
  while (plan.hi > plan.lo && counts[plan.hi] == 0) --plan.hi;
  if (plan.lo == plan.hi) return plan;
  plan.lengths = code_lengths(counts);
  std::uint64_t bits = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) bits += counts[e] * plan.lengths[e];
  plan.code_bytes = (bits + 7) / 8;
  return plan;
}

/// Form 1 behind the first byte; returns the end.
template <class F>
std::byte* write_coded(const Plan& plan, const std::byte* x, std::size_t n, std::byte* to) {
  *to++ = static_cast<std::byte>(plan.lo);
  *to++ = static_cast<std::byte>(plan.hi);
  for (unsigned e = plan.lo; e <= plan.hi && plan.lo < plan.hi; e += 2) {
    const unsigned second = e < plan.hi ? plan.lengths[e + 1] : 0U;
    *to++ = static_cast<std::byte>(plan.lengths[e] | second << 4);
  }
  std::byte* high = to + F::low_bytes(n);
  CodeWriter codes(to + F::rest_bytes(n));
  const auto code = canonical_codes(plan.lengths);
  for (std::size_t first = 0; first < n; first += kGroup) {
    const std::size_t m = std::min(kGroup, n - first);
    alignas(64) std::uint8_t upper[kGroup + 8] = {};
    for (std::size_t i = 0; i < m; ++i) {
      const auto w = load<typename F::Word>(x, first + i);
      const unsigned rest = F::rest(w), e = F::exponent(w);
      std::memcpy(to + F::low_bytes(first + i), &rest, F::kLow / 8);  // Little-endian.
      upper[i] = static_cast<std::uint8_t>(rest >> F::kLow);
      if (plan.lo != plan.hi) codes.put(code[e], plan.lengths[e]);
    }
    if constexpr (F::kHigh > 0) {
      bit_planes::pack_group<F::kHigh>(upper, m, high + first * F::kHigh / 8);
    }
  }
  codes.flush();
  return to + F::rest_bytes(n) + plan.code_bytes;
}

/// The tables of form 1; advances `wire` past them.
template <class F>
Plan read_plan(Bytes& wire, CodeTable& table) {
  Plan plan;
  if (wire.size() < 2) malformed("no exponents");
  plan.lo = static_cast<unsigned>(wire[0]);
  plan.hi = static_cast<unsigned>(wire[1]);
  if (plan.lo > plan.hi || plan.hi >= F::kExponents) malformed("exponents out of range");
  if (wire.size() < plan.table_bytes()) malformed("no code lengths");
  for (unsigned e = plan.lo; e <= plan.hi && plan.lo < plan.hi; ++e) {
    const auto two = static_cast<unsigned>(wire[2 + (e - plan.lo) / 2]);
    plan.lengths[e] = static_cast<std::uint8_t>((e - plan.lo) % 2 == 0 ? two & 15 : two >> 4);
  }
  if (plan.lo < plan.hi && !make_code_table(plan.lengths, table)) malformed("code lengths");
  wire = wire.subspan(plan.table_bytes());
  return plan;
}

template <class F>
void read_coded(Bytes wire, MutView out) {
  using Word = typename F::Word;
  CodeTable table;
  const Plan plan = read_plan<F>(wire, table);
  const std::size_t n = out.n;
  if (wire.size() < F::rest_bytes(n)) malformed("too few for the numbers");
  const std::byte* low = wire.data();
  const std::byte* high = low + F::low_bytes(n);
  CodeReader codes(wire.subspan(F::rest_bytes(n)));
  std::array<Word, kTile> tile;
  for (std::size_t first = 0; first < n; first += kTile) {
    const std::size_t count = std::min(kTile, n - first);
    for (std::size_t g = 0; g < count; g += kGroup) {
      const std::size_t m = std::min(kGroup, count - g);
      alignas(64) std::uint8_t upper[kGroup + 8] = {};
      if constexpr (F::kHigh > 0) {
        bit_planes::unpack_group<F::kHigh>(high + (first + g) * F::kHigh / 8, m, upper);
      }
      for (std::size_t i = g; i < g + m; ++i) {
        unsigned rest = 0;
        std::memcpy(&rest, low + F::low_bytes(first + i), F::kLow / 8);
        rest |= static_cast<unsigned>(upper[i - g]) << F::kLow;
        const unsigned e = plan.lo == plan.hi ? plan.lo : codes.get(table);
        tile[i] = F::join(e, rest);
      }
    }
    convert({tile.data(), F::kDtype, count}, out.slice(first, count));
  }
  if (!codes.ended()) malformed("codes do not end with the span");
}

class LosslessCodec final : public Codec {
 public:
  /// `cast` null: numbers travel in their own dtype.
  LosslessCodec(std::string text, CodecPtr cast, Dtype dtype)
      : spec_(std::move(text)), cast_(std::move(cast)), dtype_(dtype) {}

  const std::string& spec() const override { return spec_; }
  CodecTraits traits() const override {
    CodecTraits t;
    t.fixed_rate = false;
    t.lossless = true;
    t.nan = NanPolicy::kPreserve;
    t.max_error = cast_ ? cast_->traits().max_error : 0;
    return t;
  }
  WireBytes wire_bytes(std::size_t n) const override {
    if (n == 0) return {};
    return {.payload = n * size_of(dtype_), .scale = 1};
  }

  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    require_wire_size(spec_, "encode", wire.size(), max_wire_size(x.n));
    if (x.n == 0) return 0;
    if (!cast_ || x.dtype == dtype_) return write(x, wire);
    Tensor cast(nullptr, MemoryKind::kWorkspace, dtype_, x.n);
    cast_->encode(x, ctx, cast.view().as_bytes());
    return write(cast.view(), wire);
  }

  void decode(std::span<const std::byte> wire, MutView out) const override {
    if (wire.empty()) {
      std::fill_n(out.as_bytes().data(), out.bytes(), std::byte{0});
      return;
    }
    const auto first = static_cast<int>(wire[0]);
    if ((first & 3) == 3 || first >= 8) malformed("the first byte");
    const auto dtype = static_cast<Dtype>(first & 3);
    const Bytes rest = wire.subspan(1);
    if ((first & kCoded) != 0) {
      with_fields(dtype, [&](auto fields) { read_coded<decltype(fields)>(rest, out); });
      return;
    }
    if (rest.size() != out.n * size_of(dtype)) malformed("not the size of the numbers");
    convert({rest.data(), dtype, out.n}, out);
  }

 private:
  static std::size_t write(ConstView x, std::span<std::byte> wire) {
    return with_fields(x.dtype, [&](auto fields) -> std::size_t {
      using F = decltype(fields);
      const auto* numbers = static_cast<const std::byte*>(x.data);
      const Plan plan = make_plan<F>(numbers, x.n);
      if (plan.zeros) return 0;
      const auto type = static_cast<int>(x.dtype);
      if (plan.table_bytes() + F::rest_bytes(x.n) + plan.code_bytes < x.bytes()) {
        wire[0] = static_cast<std::byte>(type | kCoded);
        const std::byte* end = write_coded<F>(plan, numbers, x.n, wire.data() + 1);
        return static_cast<std::size_t>(end - wire.data());
      }
      wire[0] = static_cast<std::byte>(type);
      std::memcpy(wire.data() + 1, numbers, x.bytes());
      return 1 + x.bytes();
    });
  }

  std::string spec_;
  CodecPtr cast_;
  Dtype dtype_;  ///< Widest that travels.
};

static_assert(static_cast<int>(Dtype::kF32) == 0 && static_cast<int>(Dtype::kBF16) == 1 &&
              static_cast<int>(Dtype::kF16) == 2);

CodecPtr make_lossless(const CodecSpec& spec) {
  const std::string word = choice_arg(spec, "dtype", "own", {"own", "fp32", "bf16", "fp16"});
  if (word == "own") {
    return std::make_shared<const LosslessCodec>("lossless", nullptr, Dtype::kF32);
  }
  const Dtype dtype = parse_dtype(word);
  return std::make_shared<const LosslessCodec>("lossless:dtype=" + word, identity_codec(dtype),
                                               dtype);
}

}  // namespace

std::vector<CodecEntry> lossless_codecs() {
  return {
      {.name = "lossless",
       .help = "bit for bit, exponents in a Huffman code; variable rate",
       .params = {{"dtype", "own", "own: as the numbers come; or cast to fp32, bf16, fp16"}},
       .examples = {"lossless", "lossless:dtype=bf16", "lossless:dtype=fp16",
                    "lossless:dtype=fp32"},
       .make = make_lossless}};
}

}  // namespace zeropp::quant
