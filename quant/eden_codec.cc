// eden: scale correction after Vargaftik et al., EDEN, ICML 2022. The codec behind turns y into
// q; what is decoded is S q with S = |y|^2 / <y, q>, one S in fp32 for each `block` numbers, in
// front of the inner wire. Then <decoded, y> = |y|^2: nothing is lost along y, as rounding to
// nearest loses it. With a random rotation in front, "hadamard(n,random=yes)|eden|int4", what
// is left is (nearly, as rotations of n dimensions are few) unbiased, at less error than
// stochastic rounding. S is per block, not per span: choose block = n, the numbers that are
// rotated together, for the theorem; block = the inner block is the default.

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/convert.h"
#include "quant/decorator.h"
#include "quant/error.h"
#include "quant/spec_args.h"

namespace zeropp::quant {
namespace {

/// Keeps the error bounded where q has lost y (a block far below its span's scale).
constexpr double kMaxCorrection = 8;

float correction(const float* y, const float* q, std::size_t n) {
  double yy[8] = {}, yq[8] = {};  // A fixed order of summation that vectors can follow.
  const auto add = [&](std::size_t i, std::size_t j) {
    yy[j] += static_cast<double>(y[i + j]) * y[i + j];
    yq[j] += static_cast<double>(y[i + j]) * q[i + j];
  };
  std::size_t first = 0;
  for (; first + 8 <= n; first += 8) {
    for (std::size_t j = 0; j < 8; ++j) add(first, j);
  }
  for (std::size_t j = 0; first + j < n; ++j) add(first, j);
  double norm = 0, product = 0;
  for (int j = 0; j < 8; ++j) {
    norm += yy[j];
    product += yq[j];
  }
  if (!std::isfinite(norm) || !std::isfinite(product)) {
    return std::bit_cast<float>(std::uint32_t{0x7FC00000});
  }
  if (!(product > 0)) return 1;
  return static_cast<float>(std::clamp(norm / product, 1 / kMaxCorrection, kMaxCorrection));
}

class EdenCodec final : public DecoratorCodec {
 public:
  EdenCodec(const std::string& head, std::size_t block, CodecPtr behind)
      : DecoratorCodec(head, std::move(behind)), block_(block) {}

  CodecTraits traits() const override {
    CodecTraits t = inner_traits();
    t.nan = NanPolicy::kPoisonBlock;
    t.block = std::max(t.block, block_);
    t.unbiased = t.sums_transformed = false;
    // |y - S q| <= |y - q| + |S - 1| |q|.
    t.max_error += (kMaxCorrection - 1) * (1 + t.max_error) + 0x1p-22;
    t.floor = kMaxCorrection * (t.floor + 0x1p-148);
    return t;
  }

  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    check_wire("encode", wire.size(), max_wire_size(x.n));
    const std::size_t header = header_size(x.n);
    const std::size_t bytes = inner().encode(x, ctx, wire.subspan(header));
    Tensor y = scratch(x.n), q = scratch(x.n);
    convert(x, y.view());
    inner().decode(wire.subspan(header, bytes), q.view());
    for (std::size_t first = 0, k = 0; first < x.n; first += block_, ++k) {
      const float s =
          correction(y.f32() + first, q.f32() + first, std::min(block_, x.n - first));
      std::memcpy(wire.data() + k * sizeof s, &s, sizeof s);
    }
    return header + bytes;
  }

  void decode(std::span<const std::byte> wire, MutView out) const override {
    check_wire("decode", wire.size(), header_size(out.n));
    Tensor q = scratch(out.n);
    inner().decode(wire.subspan(header_size(out.n)), q.view());
    for (std::size_t first = 0, k = 0; first < out.n; first += block_, ++k) {
      float s;
      std::memcpy(&s, wire.data() + k * sizeof s, sizeof s);
      float* at = q.f32() + first;
      const std::size_t n = std::min(block_, out.n - first);
      // Finite numbers stay finite, NaN stays NaN.
      for (std::size_t i = 0; i < n; ++i) {
        at[i] = std::min(std::max(at[i] * s, -FLT_MAX), FLT_MAX);
      }
    }
    divide(q.view(), 1, out);  // Makes NaN the one NaN.
  }

 private:
  std::uint64_t header_bytes(std::size_t n) const override {
    return (static_cast<std::uint64_t>(n) + block_ - 1) / block_ * sizeof(float);
  }

  std::size_t block_;
};

CodecPtr make_eden(const CodecSpec& spec, CodecPtr inner) {
  constexpr std::size_t kMaxBlock = std::size_t{1} << 30;
  if (inner->traits().receiver_state) refuse_state("eden", *inner);
  const std::size_t b = inner->traits().block;
  const std::size_t fallback = b == 1 || b > kMaxBlock ? 128 : b;
  const auto block = static_cast<std::size_t>(count_arg(spec, "block", fallback, 2, kMaxBlock));
  if (b != kWholeSpan && b % block != 0 && block % b != 0) {
    throw UsageError("codec eden", "a block that divides the inner one, or a multiple of it",
                     std::to_string(block) + " with '" + inner->spec() + "'");
  }
  return std::make_shared<const EdenCodec>("eden(block=" + std::to_string(block) + ")", block,
                                           std::move(inner));
}

}  // namespace

std::vector<CodecEntry> eden_codecs() {
  return {{.name = "eden",
           .help = "a scale for each block that takes back what rounding to nearest shrinks",
           .params = {{"block", "the codec's",
                       "numbers that share a correction (4 bytes), 2 to 2^30; "
                       "best the n of a rotation in front"}},
           .examples = {"eden(128)|mxfp4", "eden(32)|int8:block=128",
                        "hadamard(64,random=yes)|eden(64)|nvfp4"},
           .make = {},
           .decorate = make_eden}};
}

}  // namespace zeropp::quant
