// Every codec of the registry against the promises in quant/codec.h, by the checks of
// quant/contract. A new codec needs no line here: its entry's examples are run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>

#include "quant/contract/contract.h"
#include "quant/contract/data.h"
#include "quant/convert.h"
#include "quant/error.h"
#include "quant/registry.h"

namespace zeropp::quant {
namespace {

std::vector<std::string> all_examples() {
  std::vector<std::string> specs;
  for (const CodecEntry& e : codec_entries()) {
    specs.insert(specs.end(), e.examples.begin(), e.examples.end());
  }
  return specs;
}

using Case = std::tuple<std::string, std::string>;
class CodecContract : public testing::TestWithParam<Case> {};

TEST_P(CodecContract, Holds) {
  const auto& [spec, check] = GetParam();
  EXPECT_EQ(contract::run_check(check, spec, contract::Effort::kQuick), "");
}

std::string label(const testing::TestParamInfo<Case>& info) {
  std::string text = std::get<1>(info.param) + "_" + std::get<0>(info.param);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Registry, CodecContract,
                         testing::Combine(testing::ValuesIn(all_examples()),
                                          testing::ValuesIn(contract::check_names())),
                         label);

/// What the codec under test, else a clamped bf16 that keeps every promise, does wrong.
struct Faults {
  bool short_size = false;       ///< wire_bytes in 32 bits.
  bool leaves_byte = false;      ///< The last byte is not written.
  bool keeps_nan_quiet = false;  ///< NaN decodes as 0.
  bool truncates = false;        ///< Errs by more than it says.
  bool other_sum = false;        ///< decode_sum in another order.
  bool takes_short = false;      ///< No check of sizes.
  bool hidden_context = false;   ///< Uses the sender.
  bool throws_nothing_known = false;
};
Faults faults;  // NOLINT: one codec, one test at a time.

class Powers final : public Codec {
 public:
  const std::string& spec() const override { return spec_; }
  CodecTraits traits() const override {
    CodecTraits t;
    t.max_error = 0x1p-7;
    t.floor = 0x1p-126;
    t.nan = NanPolicy::kPreserve;
    return t;
  }
  WireBytes wire_bytes(std::size_t n) const override {
    return {.payload = (faults.short_size ? static_cast<std::uint32_t>(n) : n) * 2};
  }
  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    check(wire.size(), x.n);
    std::vector<float> numbers(x.n);
    convert(x, mut_view(numbers));
    for (std::size_t i = 0; i < x.n; ++i) {
      float v = numbers[i];
      if (std::isfinite(v)) v = std::clamp(v, -0x1.FEp127F, 0x1.FEp127F);
      if (faults.truncates) v = v > 3 ? 1 : v;
      if (faults.keeps_nan_quiet && std::isnan(v)) v = 0;
      if (faults.hidden_context) v = ctx.sender == 4 ? -v : v;
      const std::uint16_t bits = bf16_bits(v);
      wire[2 * i] = static_cast<std::byte>(bits & 0xFF);
      if (faults.leaves_byte && i + 1 == x.n) break;
      wire[2 * i + 1] = static_cast<std::byte>(bits >> 8);
    }
    if (faults.throws_nothing_known && x.n == 33) throw std::out_of_range("33");
    return 2 * x.n;
  }
  void decode(std::span<const std::byte> wire, MutView out) const override {
    check(wire.size(), out.n);
    convert({wire.data(), Dtype::kBF16, std::min(out.n, wire.size() / 2)},
            out.slice(0, std::min(out.n, wire.size() / 2)));
  }
  void decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                  MutView out) const override {
    std::vector<std::span<const std::byte>> order(wires.begin(), wires.end());
    if (faults.other_sum) std::reverse(order.begin(), order.end());
    Codec::decode_sum(order, divisor, out);
  }

 private:
  static void check(std::size_t found, std::size_t n) {
    if (found < 2 * n && !faults.takes_short) throw UsageError("powers", "room", "less");
  }
  std::string spec_ = "powers";
};

/// The checks that the codec breaks with these faults.
std::vector<std::string> broken(const Faults& with) {
  static const bool registered = [] {
    register_codec({.name = "powers",
                    .help = "a test",
                    .params = {},
                    .examples = {"powers"},
                    .make = [](const CodecSpec&) { return std::make_shared<const Powers>(); }});
    return true;
  }();
  EXPECT_TRUE(registered);
  faults = with;
  std::vector<std::string> names;
  for (const auto& f : contract::check_contract("powers", contract::Effort::kQuick)) {
    EXPECT_FALSE(f.found.empty());
    names.push_back(f.check);
  }
  faults = {};
  return names;
}

TEST(CodecContractItself, FindsWhatIsBroken) {
  using testing::Contains;
  EXPECT_THAT(broken({}), testing::IsEmpty());
  EXPECT_THAT(broken({.short_size = true}), testing::ElementsAre("sizes_add_up"));
  EXPECT_THAT(broken({.leaves_byte = true}), Contains("writes_what_it_reports"));
  EXPECT_THAT(broken({.keeps_nan_quiet = true}), testing::ElementsAre("error_within_promise"));
  EXPECT_THAT(broken({.truncates = true}), testing::ElementsAre("error_within_promise"));
  EXPECT_THAT(broken({.other_sum = true}), Contains("fused_equals_plain"));
  EXPECT_THAT(broken({.takes_short = true}), testing::ElementsAre("short_wires_are_refused"));
  EXPECT_THAT(broken({.hidden_context = true}), Contains("context_as_declared"));
  EXPECT_THAT(broken({.throws_nothing_known = true}), Contains("writes_what_it_reports"));
}

TEST(CodecContractItself, KnowsItsChecksByName) {
  EXPECT_THROW(contract::run_check("no such check", "fp32", contract::Effort::kQuick),
               UsageError);
  EXPECT_THROW(contract::check_contract("no_such_codec"), UsageError);
}

}  // namespace
}  // namespace zeropp::quant
