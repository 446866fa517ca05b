// Checks of what a wire means: errors, dtypes, sums, random numbers.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <span>

#include "quant/codec_state.h"
#include "quant/contract/checks.h"
#include "quant/error.h"
#include "quant/registry.h"

namespace zeropp::quant::contract {
namespace {

const float kNan = std::bit_cast<float>(0x7FC00000U);

struct BlockRange {
  double absmax = 0;
  double squares = 0;  ///< ||x||^2.
  bool finite = true;
};

BlockRange range_of(std::span<const float> x) {
  BlockRange r;
  for (const float v : x) {
    r.absmax = std::max<double>(r.absmax, std::fabs(v));
    r.squares += double{v} * v;
    r.finite = r.finite && std::isfinite(v);
  }
  return r;
}

bool kept(const CodecTraits& traits, const BlockRange& block, float x, float y) {
  if (!block.finite) {
    return traits.nan == NanPolicy::kPoisonBlock ? std::isnan(y) : !std::isfinite(y);
  }
  const double error = std::fabs(double{x} - y);
  if (traits.exact || traits.lossless) {
    // A cast of what the wire dtype cannot hold is zero, subnormal or infinite.
    return error <= traits.max_error * block.absmax + 0x1p-25 ||
           (std::isinf(y) && block.absmax > 65504);
  }
  return error <= traits.max_error * block.absmax + 0x1p-149 + traits.floor;
}

/// Of the loops over decode that define a sum: the sum, and what its roundings may amount to.
struct Sum {
  std::vector<float> value;
  double absmax = 0;  ///< Of the sources, added up.
};

Sum sum_by_loops(const Codec& codec, const std::vector<Bytes>& encoded, std::size_t n) {
  Sum sum{.value = decode(codec, encoded[0], n)};
  for (std::size_t r = 0; r < encoded.size(); ++r) {
    const auto y = decode(codec, encoded[r], n);
    double absmax = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (r > 0) sum.value[i] += y[i];
      if (std::isfinite(y[i])) absmax = std::max<double>(absmax, std::fabs(y[i]));
    }
    sum.absmax += absmax;
  }
  for (float& v : sum.value) v = std::isnan(v) ? kNan : v;
  return sum;
}

/// NaN where it is NaN, and near it where it is finite.
bool is_near(std::span<const float> got, std::span<const float> wanted, double error) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (std::isinf(wanted[i])) continue;  // The sum overflows one way or the other.
    if (std::isnan(got[i]) != std::isnan(wanted[i])) return false;
    if (!std::isnan(got[i]) && !(std::fabs(double{got[i]} - wanted[i]) <= error)) return false;
  }
  return true;
}

/// A mean that was encoded again: blocks in which it is not finite (a sum that overflowed) are
/// as the NaN policy says, the others as near as codec and sums promise.
bool keeps_mean(const CodecTraits& traits, std::span<const float> got,
                std::span<const float> mean, double near) {
  for (std::size_t first = 0, count = 0; first < mean.size(); first += count) {
    count = std::min(mean.size() - first, traits.block);
    const auto wanted = mean.subspan(first, count), y = got.subspan(first, count);
    const BlockRange block = range_of(wanted);
    for (std::size_t i = 0; i < count && !block.finite; ++i) {
      if (!kept(traits, block, wanted[i], y[i])) return false;
    }
    if (block.finite && !is_near(y, wanted, near + traits.max_error * block.absmax)) {
      return false;
    }
  }
  return true;
}

/// reduce_encode to some codecs and to itself against `mean`, which is near what plain decodes
/// give by `near`.
void compare_reduced(const Subject& s, std::span<const std::span<const std::byte>> wires,
                     float divisor, const std::vector<float>& mean, double near) {
  const CodecTraits traits = s.traits();
  for (const std::string& spec :
       {std::string("bf16"), std::string("int8:block=48"), std::string("int4"), s.spec()}) {
    const auto to = make_codec(spec);
    const Bytes wire = reduce_encode(*to, s.codec(), wires, mean.size(), divisor);
    if (!traits.sums_transformed || spec != s.spec() || traits.receiver_state) {
      expect(wire == encode(*to, view(mean)),
             [&] { return "reduce_encode to " + spec + " is not decode_sum and encode"; });
      continue;
    }
    expect(keeps_mean(traits, decode(*to, wire, mean.size()), mean, near),
           "reduce_encode is not near decode_sum and encode");
  }
}

/// Every way to take the mean of the wires against the sum of plain decodes.
void compare_means(const Subject& s, std::span<const std::span<const std::byte>> wires,
                   float divisor, const Sum& sum) {
  const Codec& codec = s.codec();
  const CodecTraits traits = s.traits();
  auto mean = sum.value;
  for (float& v : mean) v = std::isnan(v) ? kNan : v / divisor;
  std::vector<float> got(mean.size());
  call_decode_sum(codec, wires, divisor, context(), mut_view(got));
  if (!traits.receiver_state) {
    std::vector<float> base(mean.size());
    codec.Codec::decode_sum(wires, divisor, mut_view(base));
    expect(same_bits(base, mean), "decode_add is not the sum of decodes");
  }
  const double near = 0x1p-18 * sum.absmax / divisor + 0x1p-149 + traits.floor;
  if (traits.sums_transformed) {
    expect(sum.absmax >= FLT_MAX || is_near(got, mean, near),
           "decode_sum is not near the sum of decodes");
    mean = got;  // What the other calls must agree with.
  }
  expect(same_bits(got, mean), "decode_sum is not the sum of decodes");
  Numbers half(Dtype::kBF16, mean.size());
  call_decode_sum(codec, wires, divisor, context(), half.view());
  expect(half.bytes() == Numbers(Dtype::kBF16, mean).bytes(),
         "decode_sum to bf16 is not the rounded sum");
  compare_reduced(s, wires, divisor, mean, near);
}

}  // namespace

void error_within_promise(Subject& s) {
  const CodecTraits traits = s.traits();
  s.for_each_input([&](const Numbers& input) {
    const auto x = input.floats();
    const auto y = decode(s.codec(), encode(s.codec(), input.view(), hop_context()), x.size());
    for (std::size_t first = 0; first < x.size(); first += traits.block) {
      const std::size_t end = std::min(x.size(), first + traits.block);
      const BlockRange block = range_of(std::span(x).subspan(first, end - first));
      double squares = 0;
      for (std::size_t i = first; i < end; ++i) {
        squares += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
        expect(kept(traits, block, x[i], y[i]), [&] {
          return fmt::format("element {} of a block with absmax {} is {} and decodes to {}", i,
                             block.absmax, x[i], y[i]);
        });
      }
      if (!block.finite || traits.contraction == 0) continue;
      const double slack = 0x1p-149 + traits.floor;
      expect(squares <= (1 - traits.contraction) * block.squares +
                            static_cast<double>(end - first) * slack * slack,
             [&] {
               return fmt::format("||x - y||^2 = {} in a block with ||x||^2 = {}", squares,
                                  block.squares);
             });
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
    call_decode(s.codec(), wire, context(), got.view());
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
      const Sum sum = sum_by_loops(codec, encoded, n);
      if (!s.traits().receiver_state) {
        auto added = decode(codec, encoded[0], n);
        for (std::size_t r = 1; r < encoded.size(); ++r) codec.decode_add(encoded[r], added);
        expect(same_bits(added, sum.value), "decode_add is not the sum of decodes");
      }
      for (const float divisor : {1.0F, 5.0F}) compare_means(s, wires, divisor, sum);
    }
  }
}

void context_as_declared(Subject& s) {
  const auto x = make_data("normal", 4000);
  const Bytes mine = encode(s.codec(), view(x), context(3));
  expect(mine == encode(s.codec(), view(x), context(3)),
         "two encodes with the same context differ");
  CodecContext other = context(4);
  ++other.step;
  const bool same = mine == encode(s.codec(), view(x), other);
  const bool declared = s.traits().deterministic || s.traits().block == 1;
  expect(same || !declared, "depends on the context although it says deterministic");
  expect(!same || declared, "does not depend on the context although it is not deterministic");
}

void state_is_asked_for(Subject& s) {
  const Codec& codec = s.codec();
  const CodecTraits traits = s.traits();
  std::vector<float> x(100, 1.0F);
  Bytes wire(codec.max_wire_size(x.size()));
  if (!traits.stateful) {
    expect(!traits.receiver_state, "receivers keep state although senders do not");
    return;
  }
  const auto refuses = [](const auto& call) {
    try {
      call();
    } catch (const UsageError&) {
      return true;
    }
    return false;
  };
  expect(refuses([&] { codec.encode(view(x), context(), wire); }),
         "encode invents a state where the context has none");
  if (traits.receiver_state) {
    expect(refuses([&] { codec.decode(wire, mut_view(x)); }) &&
               refuses([&] { codec.decode_with(wire, context(), mut_view(x)); }),
           "decode invents a state where the context has none");
  }
  CodecState state;
  CodecContext ctx = context();
  ctx.state = &state;
  codec.encode(view(x), ctx, wire);
  expect(!state.empty(), "encode says stateful and keeps nothing");
}

}  // namespace zeropp::quant::contract
