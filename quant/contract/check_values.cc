// Checks of what a wire means: errors, dtypes, sums, random numbers.

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "quant/contract/checks.h"
#include "quant/registry.h"

namespace zeropp::quant::contract {
namespace {

struct BlockRange {
  double absmax = 0;
  bool finite = true;
};

BlockRange range_of(std::span<const float> x) {
  BlockRange r;
  for (const float v : x) {
    r.absmax = std::max<double>(r.absmax, std::fabs(v));
    r.finite = r.finite && std::isfinite(v);
  }
  return r;
}

bool kept(const CodecTraits& traits, const BlockRange& block, float x, float y) {
  if (!block.finite) {
    return traits.nan == NanPolicy::kPoisonBlock ? std::isnan(y) : !std::isfinite(y);
  }
  const double error = std::fabs(double{x} - y);
  if (traits.exact) {
    // A cast of what the wire dtype cannot hold is zero, subnormal or infinite.
    return error <= traits.max_error * block.absmax + 0x1p-25 ||
           (std::isinf(y) && block.absmax > 65504);
  }
  return error <= traits.max_error * block.absmax + 0x1p-149 + traits.floor;
}

/// Every way to take the mean of the wires against `mean`, made of plain decodes.
void compare_means(const Subject& s, std::span<const std::span<const std::byte>> wires,
                   float divisor, const std::vector<float>& mean) {
  const Codec& codec = s.codec();
  std::vector<float> got(mean.size()), base(mean.size());
  codec.decode_sum(wires, divisor, mut_view(got));
  codec.Codec::decode_sum(wires, divisor, mut_view(base));
  expect(same_bits(got, mean), "decode_sum is not the sum of decodes");
  expect(same_bits(base, mean), "decode_add is not the sum of decodes");
  Numbers half(Dtype::kBF16, mean.size());
  codec.decode_sum(wires, divisor, half.view());
  expect(half.bytes() == Numbers(Dtype::kBF16, mean).bytes(),
         "decode_sum to bf16 is not the rounded sum");
  for (const std::string& spec :
       {std::string("bf16"), std::string("int8:block=48"), std::string("int4"), s.spec()}) {
    const auto to = make_codec(spec);
    Bytes wire(to->max_wire_size(mean.size()));
    wire.resize(to->reduce_encode(codec, wires, mean.size(), divisor, context(), wire));
    expect(wire == encode(*to, view(mean)),
           [&] { return "reduce_encode to " + spec + " is not decode_sum and encode"; });
  }
}

}  // namespace

void error_within_promise(Subject& s) {
  const CodecTraits traits = s.traits();
  s.for_each_input([&](const Numbers& input) {
    const auto x = input.floats();
    const auto y = decode(s.codec(), encode(s.codec(), input.view()), x.size());
    for (std::size_t first = 0; first < x.size(); first += traits.block) {
      const std::size_t end = std::min(x.size(), first + traits.block);
      const BlockRange block = range_of(std::span(x).subspan(first, end - first));
      for (std::size_t i = first; i < end; ++i) {
        expect(kept(traits, block, x[i], y[i]), [&] {
          return fmt::format("element {} of a block with absmax {} is {} and decodes to {}", i,
                             block.absmax, x[i], y[i]);
        });
      }
    }
  });
}

void output_dtypes_agree(Subject& s) {
  const auto x = make_data("exponents", 1000);
  const Bytes wire = encode(s.codec(), view(x));
  const auto y = decode(s.codec(), wire, x.size());
  for (const Dtype d : kDtypes) {
    s.at(std::string(name(d)) + ", n = 1000, exponents");
    Numbers got(d, x.size());
    s.codec().decode(wire, got.view());
    expect(got.bytes() == Numbers(d, y).bytes(), "decode is not the rounded fp32 value");
  }
}

void fused_equals_plain(Subject& s) {
  const Codec& codec = s.codec();
  for (const std::size_t n : s.sizes()) {
    for (const std::string kind : {"normal", "huge", "nan_mid", "exponents"}) {
      s.at("n = " + std::to_string(n) + ", " + kind);
      std::vector<Bytes> encoded;
      for (std::uint32_t r = 0; r < 5; ++r) {
        encoded.push_back(encode(codec, view(make_data(kind, n, r)), context(r)));
      }
      const std::vector<std::span<const std::byte>> wires(encoded.begin(), encoded.end());
      const float nan = std::bit_cast<float>(0x7FC00000U);
      auto sum = decode(codec, encoded[0], n);
      auto added = sum;
      for (std::size_t r = 1; r < encoded.size(); ++r) {
        const auto y = decode(codec, encoded[r], n);
        for (std::size_t i = 0; i < n; ++i) sum[i] += y[i];
        codec.decode_add(encoded[r], added);
      }
      for (float& v : sum) v = std::isnan(v) ? nan : v;
      expect(same_bits(added, sum), "decode_add is not the sum of decodes");
      for (const float divisor : {1.0F, 5.0F}) {
        auto mean = sum;
        for (float& v : mean) v = std::isnan(v) ? nan : v / divisor;
        compare_means(s, wires, divisor, mean);
      }
    }
  }
}

void context_as_declared(Subject& s) {
  const auto x = make_data("normal", 4000);
  const Bytes mine = encode(s.codec(), view(x), context(3));
  expect(mine == encode(s.codec(), view(x), context(3)),
         "two encodes with the same context differ");
  const bool same = mine == encode(s.codec(), view(x), context(4));
  const bool declared = s.traits().deterministic || s.traits().block == 1;
  expect(same || !declared, "depends on the context although it says deterministic");
  expect(!same || declared, "does not depend on the context although it is not deterministic");
}

}  // namespace zeropp::quant::contract
