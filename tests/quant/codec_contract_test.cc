// Every codec of the registry against the promises in quant/codec.h. A new codec needs no line
// here: its entry's examples are run.

#include <gtest/gtest.h>

#include <algorithm>

#include "quant/error.h"
#include "quant/registry.h"
#include "tests/quant/codec_data.h"

namespace zeropp::quant {
namespace {

using namespace testing_support;  // NOLINT

std::vector<std::string> all_examples() {
  std::vector<std::string> specs;
  for (const CodecEntry& e : codec_entries()) {
    specs.insert(specs.end(), e.examples.begin(), e.examples.end());
  }
  return specs;
}

class CodecContract : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { codec_ = make_codec(GetParam()); }

  std::vector<std::size_t> sizes() const {
    const std::size_t block = codec_->traits().block;
    const std::size_t b = block == kWholeSpan ? 100 : block;
    std::vector<std::size_t> n{0, 1, b - 1, b, b + 1, 7 * b + 3, 33, 1000};
    std::sort(n.begin(), n.end());
    n.erase(std::unique(n.begin(), n.end()), n.end());
    return n;
  }

  /// check(x in one dtype, trace label) for every adversarial input.
  template <class Check>
  void for_each_input(const Check& check) const {
    for (const Dtype d : kDtypes) {
      for (const std::size_t n : sizes()) {
        for (const std::string& kind : data_kinds()) {
          SCOPED_TRACE(testing::Message() << name(d) << " n=" << n << ' ' << kind);
          check(Numbers(d, make_data(kind, n)));
          if (HasFatalFailure()) return;
        }
      }
      check(Numbers(d, make_data("normal", 65537)));
    }
  }

  CodecPtr codec_;
};

TEST_P(CodecContract, SpecIsCanonical) {
  const auto again = make_codec(codec_->spec());
  EXPECT_EQ(again->spec(), codec_->spec());
  EXPECT_EQ(again->traits().block, codec_->traits().block);
  EXPECT_EQ(again->wire_bytes(12345), make_codec(GetParam())->wire_bytes(12345));
}

TEST_P(CodecContract, SizesAddUpAtAnyLength) {
  EXPECT_EQ(codec_->wire_bytes(0).total(), 0U);
  for (const std::size_t n : {1ULL, 1000ULL, (1ULL << 31) - 1, 1ULL << 31, 1ULL << 33}) {
    const WireBytes w = codec_->wire_bytes(n);
    EXPECT_GT(w.total(), 0U);
    EXPECT_LE(w.total(), 16 * n);  // No product wrapped round.
    // Two halves may share a scale or a byte, or need one byte more.
    EXPECT_GE(2 * w.total() + 1, codec_->wire_bytes(2 * n).total());
    if (codec_->traits().exact) {
      EXPECT_EQ(w.exact, w.total());
    } else {
      EXPECT_EQ(w.exact, 0U);
      EXPECT_GT(w.payload + w.padding, 0U);
    }
  }
}

TEST_P(CodecContract, WritesWhatItReportsAndNothingElse) {
  for_each_input([&](const Numbers& x) {
    const ConstView v = x.view();
    const std::size_t size = codec_->max_wire_size(v.n);
    Bytes a(size + 8, std::byte{0x00}), b(size + 8, std::byte{0xA5});
    const std::size_t used = codec_->encode(v, context(), std::span(a).first(size));
    ASSERT_EQ(codec_->encode(v, context(), std::span(b).first(size)), used);
    if (codec_->traits().fixed_rate) {
      ASSERT_EQ(used, size);
    } else {
      ASSERT_LE(used, size);
    }
    const auto end = static_cast<std::ptrdiff_t>(used);
    ASSERT_TRUE(std::equal(a.begin(), a.begin() + end, b.begin()));
    for (std::size_t i = size; i < size + 8; ++i) {
      ASSERT_EQ(a[i], std::byte{0x00});
      ASSERT_EQ(b[i], std::byte{0xA5});
    }
  });
}

TEST_P(CodecContract, EveryInstructionSetGivesTheReferenceBytes) {
  for_each_input([&](const Numbers& x) {
    const ConstView v = x.view();
    Bytes wire, sums, reduced;
    for (const std::string& target : simd_targets()) {
      const OnTarget forced(target);
      SCOPED_TRACE(target);
      const Bytes bytes = encode(*codec_, v);
      Numbers decoded(v.dtype, v.n);
      codec_->decode(bytes, decoded.view());
      const std::vector<std::span<const std::byte>> wires(3, bytes);
      Numbers sum(v.dtype, v.n);
      codec_->decode_sum(wires, 3, sum.view());
      std::vector<float> added(v.n, 0.5F);
      codec_->decode_add(bytes, added);
      Bytes all = decoded.bytes();
      all.insert(all.end(), sum.bytes().begin(), sum.bytes().end());
      const auto more = view(added).as_bytes();
      all.insert(all.end(), more.begin(), more.end());
      Bytes out(codec_->max_wire_size(v.n));
      out.resize(codec_->reduce_encode(*codec_, wires, v.n, 3, context(), out));
      if (target == "scalar") {
        wire = bytes;
        sums = all;
        reduced = out;
      }
      ASSERT_TRUE(bytes == wire) << "encode";
      ASSERT_TRUE(all == sums) << "decode, decode_sum or decode_add";
      ASSERT_TRUE(out == reduced) << "reduce_encode";
    }
  });
}

TEST_P(CodecContract, ErrorStaysWithinItsPromise) {
  const CodecTraits traits = codec_->traits();
  for_each_input([&](const Numbers& input) {
    const auto x = input.floats();
    const auto y = decode(*codec_, encode(*codec_, input.view()), x.size());
    for (std::size_t first = 0; first < x.size(); first += traits.block) {
      const std::size_t end = std::min(x.size(), first + traits.block);
      double absmax = 0;
      bool finite = true;
      for (std::size_t i = first; i < end; ++i) {
        absmax = std::max<double>(absmax, std::fabs(x[i]));
        finite = finite && std::isfinite(x[i]);
      }
      for (std::size_t i = first; i < end; ++i) {
        if (!finite) {
          ASSERT_TRUE(traits.nan == NanPolicy::kPoisonBlock ? std::isnan(y[i])
                                                            : !std::isfinite(y[i]))
              << i;
        } else if (traits.exact) {
          // A cast of what the wire dtype cannot hold is zero, subnormal or infinite.
          const double slack = traits.max_error * absmax + 0x1p-25;
          ASSERT_TRUE(std::fabs(double{x[i]} - y[i]) <= slack ||
                      (std::isinf(y[i]) && absmax > 65504))
              << i << ' ' << x[i] << ' ' << y[i];
        } else {
          ASSERT_LE(std::fabs(double{x[i]} - y[i]),
                    traits.max_error * absmax + 0x1p-149 + traits.floor)
              << i << ' ' << x[i] << ' ' << y[i];
        }
      }
    }
  });
}

TEST_P(CodecContract, EveryDtypeOfOutputIsTheRoundedFp32) {
  const auto x = make_data("exponents", 1000);
  const Bytes wire = encode(*codec_, view(x));
  const auto y = decode(*codec_, wire, x.size());
  for (const Dtype d : kDtypes) {
    Numbers got(d, x.size());
    codec_->decode(wire, got.view());
    EXPECT_TRUE(got.bytes() == Numbers(d, y).bytes()) << name(d);
  }
}

TEST_P(CodecContract, DecodesInPlaceOfDefinition) {
  // decode_add, decode_sum and reduce_encode against plain loops over decode.
  for (const std::size_t n : sizes()) {
    for (const std::string kind : {"normal", "huge", "nan_mid", "exponents"}) {
      SCOPED_TRACE(testing::Message() << n << ' ' << kind);
      std::vector<Bytes> encoded;
      for (std::uint32_t s = 0; s < 5; ++s) {
        encoded.push_back(encode(*codec_, view(make_data(kind, n, s)), context(s)));
      }
      const std::vector<std::span<const std::byte>> wires(encoded.begin(), encoded.end());
      const float nan = std::bit_cast<float>(0x7FC00000U);
      auto sum = decode(*codec_, encoded[0], n);
      auto added = sum;
      for (std::size_t s = 1; s < encoded.size(); ++s) {
        const auto y = decode(*codec_, encoded[s], n);
        for (std::size_t i = 0; i < n; ++i) sum[i] += y[i];
        codec_->decode_add(encoded[s], added);
      }
      for (float& v : sum) v = std::isnan(v) ? nan : v;
      ASSERT_TRUE(same_bits(added, sum));
      for (const float divisor : {1.0F, 5.0F}) {
        auto mean = sum;
        for (float& v : mean) v = std::isnan(v) ? nan : v / divisor;
        std::vector<float> got(n), base(n);
        codec_->decode_sum(wires, divisor, mut_view(got));
        codec_->Codec::decode_sum(wires, divisor, mut_view(base));
        ASSERT_TRUE(same_bits(got, mean));
        ASSERT_TRUE(same_bits(base, mean));
        Numbers half(Dtype::kBF16, n);
        codec_->decode_sum(wires, divisor, half.view());
        ASSERT_TRUE(half.bytes() == Numbers(Dtype::kBF16, mean).bytes());
        for (const std::string& spec : {std::string("bf16"), std::string("int8:block=48"),
                                        std::string("int4"), GetParam()}) {
          const auto to = make_codec(spec);
          Bytes wire(to->max_wire_size(n));
          wire.resize(to->reduce_encode(*codec_, wires, n, divisor, context(), wire));
          ASSERT_TRUE(wire == encode(*to, view(mean))) << "to " << spec;
        }
      }
    }
  }
}

TEST_P(CodecContract, AnyBytesDecodeInsideTheirSpan) {
  const Philox random({.purpose = Purpose::kTest, .tensor = 77});
  for (const std::size_t n : sizes()) {
    Bytes wire(codec_->max_wire_size(n));
    for (std::size_t i = 0; i < wire.size(); ++i)
      wire[i] = static_cast<std::byte>(random.word(i));
    for (const Dtype d : kDtypes) {
      Bytes scalar;
      for (const std::string& target : simd_targets()) {
        const OnTarget forced(target);
        Bytes out(n * size_of(d) + 64, std::byte{0xA5});
        codec_->decode(wire, {out.data() + 32, d, n});
        for (std::size_t i = 0; i < 32; ++i) {
          ASSERT_EQ(out[i], std::byte{0xA5});
          ASSERT_EQ(out[out.size() - 1 - i], std::byte{0xA5});
        }
        if (target == "scalar") scalar = out;
        ASSERT_TRUE(out == scalar) << target;
      }
    }
  }
}

TEST_P(CodecContract, WiresAndViewsNeedNoAlignment) {
  const std::size_t n = 3 * std::min<std::size_t>(codec_->traits().block, 5000) + 5;
  const auto x = make_data("normal", n);
  const Bytes wire = encode(*codec_, view(x));
  const auto y = decode(*codec_, wire, n);
  for (std::size_t shift = 1; shift < 4; ++shift) {
    Bytes moved(wire.size() + shift);
    const auto at = std::span(moved).subspan(shift);
    Numbers in(Dtype::kF32, n, shift), out(Dtype::kF32, n, shift);
    convert(view(x), in.view());
    ASSERT_EQ(codec_->encode(in.view(), context(), at), wire.size());
    ASSERT_TRUE(std::equal(at.begin(), at.end(), wire.begin()));
    codec_->decode(at, out.view());
    ASSERT_TRUE(same_bits(out.floats(), y));
  }
}

TEST_P(CodecContract, ShortWiresAreRefused) {
  std::vector<float> x(100, 1.0F);
  Bytes wire(codec_->max_wire_size(100));
  const auto cut = std::span(wire).first(wire.size() - 1);
  EXPECT_THROW(codec_->encode(view(x), context(), cut), UsageError);
  if (!codec_->traits().fixed_rate) return;
  EXPECT_THROW(codec_->decode(cut, mut_view(x)), UsageError);
  EXPECT_THROW(codec_->decode_add(cut, x), UsageError);
  const std::vector<std::span<const std::byte>> wires{wire, cut};
  EXPECT_THROW(codec_->decode_sum(wires, 1, mut_view(x)), UsageError);
  EXPECT_THROW(codec_->decode_sum({}, 1, mut_view(x)), UsageError);
}

TEST_P(CodecContract, DependsOnTheContextOnlyIfItSaysSo) {
  const auto x = make_data("normal", 4000);
  const Bytes mine = encode(*codec_, view(x), context(3));
  EXPECT_TRUE(mine == encode(*codec_, view(x), context(3)));
  CodecContext other = context(4);
  ++other.step;  // What all senders share differs between steps.
  EXPECT_EQ(mine == encode(*codec_, view(x), other),
            codec_->traits().deterministic || codec_->traits().block == 1);
}

std::string label(const testing::TestParamInfo<std::string>& info) {
  std::string text = info.param;
  std::replace_if(
      text.begin(), text.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Registry, CodecContract, testing::ValuesIn(all_examples()), label);

}  // namespace
}  // namespace zeropp::quant
