// codebook: INTELLECT-1's uniform 8-bit quantization with a table of bin means (Jaghouar et
// al., "INTELLECT-1 technical report", 2024; hivemind's UniformBucketQuantization).
//
// Of a chunk of m numbers, in double: mu their mean, sigma their unbiased deviation (divisor
// m - 1), step = 6 sigma / 256, code = clamp(nearest-even((x - mu) / step) + 128, 0, 255), 128
// for all where sigma is 0. Sums run over 8 interleaved partial sums in element order that are
// folded in order. Bytes: 256 fp32, entry c the mean of the numbers with code c (summed in
// double in element order; 0 for an empty bin), as metadata; then m codes. Decoding looks up.
// Chunks of at most 341 numbers travel as fp32 instead, which is no longer than table and
// codes. A number is not finite: table (or chunk) of NaN, codes 0.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/chunked_codec.h"
#include "quant/convert.h"
#include "quant/error.h"
#include "quant/reference.h"
#include "quant/spec_args.h"

namespace zeropp::quant {
namespace {

constexpr std::size_t kLanes = 8, kTile = 4096, kBins = 256;
constexpr std::size_t kTable = kBins * sizeof(float);
constexpr std::size_t kPlain = 341;  // 4 m <= kTable + m.
constexpr float kNan = std::bit_cast<float>(0x7FC00000);

/// Calls use(fp32 numbers, first, count) for the tiles of x.
template <class Use>
void for_tiles(ConstView x, const Use& use) {
  alignas(64) std::array<float, kTile> tile;
  for (std::size_t first = 0; first < x.n; first += kTile) {
    const std::size_t m = std::min(kTile, x.n - first);
    convert(x.slice(first, m), {tile.data(), Dtype::kF32, m});
    use(tile.data(), first, m);
  }
}

/// Sum of term(number) in the order above.
template <class Term>
double sum_of(ConstView x, const Term& term) {
  std::array<double, kLanes> lanes{};
  for_tiles(x, [&](const float* p, std::size_t, std::size_t m) {
    std::array<double, kLanes> sum = lanes;
    std::size_t i = 0;
    for (; i + kLanes <= m; i += kLanes) {
      for (std::size_t l = 0; l < kLanes; ++l) sum[l] += term(double{p[i + l]});
    }
    for (; i < m; ++i) sum[i % kLanes] += term(double{p[i]});
    lanes = sum;
  });
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

struct Bins {
  double mean = 0, step = 0;
  std::uint8_t code(float x) const {
    if (step == 0) return 128;
    const double v = (double{x} - mean) / step;
    // Clamped first, adding 1.5 * 2^52 rounds to nearest even.
    const double within = v < -128 ? -128 : v > 127 ? 127 : v;
    return static_cast<std::uint8_t>(static_cast<int>((within + 0x1.8p52) - 0x1.8p52) + 128);
  }
};

Bins bins_of(ConstView x) {
  Bins bins;
  bins.mean = sum_of(x, [](double v) { return v; }) / static_cast<double>(x.n);
  const double squares =
      sum_of(x, [mean = bins.mean](double v) { return (v - mean) * (v - mean); });
  bins.step = 6 * std::sqrt(squares / static_cast<double>(x.n - 1)) / 256;
  return bins;
}

class CodebookCodec final : public ChunkedCodec {
 public:
  using ChunkedCodec::ChunkedCodec;

  CodecTraits traits() const override {
    CodecTraits t;
    t.block = chunk();
    t.max_error = 2;  // Of the outer bins, which have no outer end: two numbers of one bin.
    return t;
  }

  void decode(std::span<const std::byte> wire, MutView out) const override {
    for_runs("decode", wire, out.n, [&](std::size_t first, std::span<const float> x) {
      convert(view(x), out.slice(first, x.size()));
    });
  }
  void decode_add(std::span<const std::byte> wire, std::span<float> sum) const override {
    for_runs("decode_add", wire, sum.size(), [&](std::size_t first, std::span<const float> x) {
      accumulate(mut_view(sum.subspan(first, x.size())), view(x));
    });
  }

 protected:
  WireBytes chunk_bytes(std::size_t m) const override {
    if (m <= kPlain) return {.payload = m * sizeof(float)};
    return {.payload = m, .scale = kTable};
  }

  void encode_chunk(ConstView x, std::byte* wire) const override {
    const bool finite = all_finite(x);
    if (x.n <= kPlain) {
      std::array<float, kPlain> numbers;
      numbers.fill(kNan);
      if (finite) convert(x, {numbers.data(), Dtype::kF32, x.n});
      std::memcpy(wire, numbers.data(), x.n * sizeof(float));
      return;
    }
    std::array<float, kBins> table;
    if (finite) {
      write_codes(x, table, wire + kTable);
    } else {
      table.fill(kNan);
      std::memset(wire + kTable, 0, x.n);
    }
    std::memcpy(wire, table.data(), kTable);
  }

 private:
  static void write_codes(ConstView x, std::array<float, kBins>& table, std::byte* codes) {
    const Bins bins = bins_of(x);
    std::array<double, kBins> sums{};
    std::array<std::uint64_t, kBins> counts{};
    for_tiles(x, [&](const float* p, std::size_t first, std::size_t m) {
      std::array<std::uint8_t, kTile> c;
      for (std::size_t i = 0; i < m; ++i) c[i] = bins.code(p[i]);
      for (std::size_t i = 0; i < m; ++i) {
        sums[c[i]] += p[i];
        ++counts[c[i]];
      }
      std::memcpy(codes + first, c.data(), m);
    });
    for (std::size_t c = 0; c < kBins; ++c) {
      const double count = static_cast<double>(counts[c] == 0 ? 1 : counts[c]);
      table[c] = static_cast<float>(sums[c] / count);
    }
  }

  /// use(first, decoded numbers) for runs of a tile or less.
  template <class Use>
  void for_runs(const char* what, std::span<const std::byte> wire, std::size_t n,
                const Use& use) const {
    for_chunks(what, wire, n, [&](std::size_t first, std::size_t m, const std::byte* from) {
      alignas(64) std::array<float, kTile> tile;
      if (m <= kPlain) {
        std::memcpy(tile.data(), from, m * sizeof(float));
        for (std::size_t i = 0; i < m; ++i) tile[i] = reference::canonical(tile[i]);
        use(first, std::span<const float>(tile).first(m));
        return;
      }
      std::array<float, kBins> table;
      std::memcpy(table.data(), from, kTable);
      for (float& mean : table) mean = reference::canonical(mean);
      const std::byte* codes = from + kTable;
      for (std::size_t at = 0; at < m; at += kTile) {
        const std::size_t count = std::min(kTile, m - at);
        for (std::size_t i = 0; i < count; ++i) {
          tile[i] = table[static_cast<std::size_t>(codes[at + i])];
        }
        use(first + at, std::span<const float>(tile).first(count));
      }
    });
  }
};

}  // namespace

std::vector<CodecEntry> codebook_codecs() {
  return {
      {.name = "codebook",
       .help = "INTELLECT-1: 256 uniform bins over 6 sigma, decoded to the means of the bins",
       .params = {{"block", "0", "numbers that share a table, 1 to 2^30; 0: the span"}},
       .examples = {"codebook", "codebook:block=500", "codebook:block=5000"},
       .make = [](const CodecSpec& spec) -> CodecPtr {
         const std::size_t block = block_arg(spec, 0, 0);
         return std::make_shared<const CodebookCodec>("codebook:block=" + std::to_string(block),
                                                      block == 0 ? kWholeSpan : block);
       }}};
}

}  // namespace zeropp::quant
