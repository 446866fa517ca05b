#include "quant/contract/data.h"

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <map>

#include "quant/convert.h"
#include "quant/rng.h"
#include "quant/simd.h"

namespace zeropp::quant::contract {
namespace {

/// The first numbers of a fixed stream of normals, kept: tests ask for them often.
float normal_number(std::uint32_t variation, std::size_t i) {
  thread_local std::map<std::uint32_t, std::vector<float>> kept;
  std::vector<float>& x = kept[variation];
  const Philox random({.purpose = Purpose::kTest, .tensor = 11, .sender = variation});
  while (x.size() <= i) x.push_back(random.normal(x.size()));
  return x[i];
}

}  // namespace

const std::vector<std::string>& data_kinds() {
  static const std::vector<std::string> kinds{
      "normal",    "zeros",     "outlier",  "denormals", "huge",    "plus_one",
      "minus_one", "tiny_1e-7", "lonely",   "exponents", "ties",    "scale_underflow",
      "nan_first", "nan_mid",   "nan_last", "inf_first", "inf_mid", "inf_last"};
  return kinds;
}

std::vector<float> make_data(const std::string& kind, std::size_t n, std::uint32_t variation) {
  const Philox random({.purpose = Purpose::kTest, .tensor = 11, .sender = variation});
  std::vector<float> x(n);
  const auto fill = [&](auto f) {
    for (std::size_t i = 0; i < n; ++i) x[i] = f(i);
  };
  const auto normal = [&](std::size_t i) { return normal_number(variation, i); };
  if (kind == "zeros") return x;
  if (kind == "denormals") {
    fill([&](std::size_t i) { return std::ldexp(normal_number(variation, i), -140); });
  } else if (kind == "scale_underflow") {
    fill([&](std::size_t i) { return static_cast<float>(random.word(i) % 5) * 0x1p-149F; });
  } else if (kind == "huge") {
    fill([&](std::size_t i) { return i % 3 == 0 ? -FLT_MAX : FLT_MAX / (1 + i % 2 * 7); });
  } else if (kind == "plus_one") {
    fill([](std::size_t) { return 1.0F; });
  } else if (kind == "minus_one") {
    fill([](std::size_t) { return -1.0F; });
  } else if (kind == "tiny_1e-7") {
    fill([&](std::size_t i) { return (random.uniform(i) * 2 - 1) * 1e-7F; });
  } else if (kind == "exponents") {
    fill([&](std::size_t i) {
      return std::ldexp(normal_number(variation, i),
                        static_cast<int>(random.word(i) % 60) - 40);
    });
  } else if (kind == "ties") {
    // Halves below an absmax of 127 (and 7): the 8-bit scale is 1, and every half is a tie.
    fill([&](std::size_t i) {
      return i % 32 == 0 ? 127.0F : static_cast<float>(static_cast<int>(i % 254) - 127) / 2;
    });
  } else if (kind == "lonely") {
    if (n != 0) x[n / 2] = -3e-3F;
  } else {
    fill(normal);
    if (n != 0) {
      const std::size_t at = kind.ends_with("first")  ? 0
                             : kind.ends_with("last") ? n - 1
                                                      : n / 2;
      if (kind == "outlier") x[at] = 1e4F;
      if (kind.starts_with("nan")) x[at] = std::nanf("");
      if (kind.starts_with("inf")) x[at] = at % 2 == 0 ? INFINITY : -INFINITY;
    }
  }
  return x;
}

Numbers::Numbers(Dtype dtype, const std::vector<float>& x) : Numbers(dtype, x.size()) {
  convert(quant::view(x), view());
}

std::vector<float> Numbers::floats() const {
  std::vector<float> x(n_);
  convert(view(), mut_view(x));
  return x;
}

CodecContext context(std::uint32_t sender) {
  return {
      .seed = 42, .tensor = 5, .step = 9, .micro = 1, .sender = sender, .part = 2, .level = 1};
}

CodecContext hop_context(std::uint32_t sender) {
  CodecContext ctx = context(sender);
  ctx.second_hop = true;
  ctx.group_size = 6;
  ctx.group_index = sender % ctx.group_size;
  return ctx;
}

Bytes reduce_encode(const Codec& to, const Codec& from,
                    std::span<const std::span<const std::byte>> wires, std::size_t n,
                    float divisor) {
  Bytes wire(to.max_wire_size(n));
  wire.resize(call_reduce_encode(to, from, wires, n, divisor, context(), wire));
  return wire;
}

Bytes encode(const Codec& c, ConstView x, const CodecContext& ctx) {
  Bytes wire(c.max_wire_size(x.n));
  wire.resize(call_encode(c, x, ctx, wire));
  return wire;
}

std::vector<float> decode(const Codec& c, const Bytes& wire, std::size_t n) {
  std::vector<float> y(n);
  call_decode(c, wire, context(), mut_view(y));
  return y;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

OnTarget::OnTarget(const std::string& target) { force_simd_target(target); }
OnTarget::~OnTarget() { force_simd_target(""); }

}  // namespace zeropp::quant::contract
