#include "quant/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/error.h"
#include "tests/quant/error_of.h"

namespace zeropp::quant {
namespace {

using testing::HasSubstr;

TEST(Registry, CanonicalSpecs) {
  EXPECT_EQ(make_codec("int8")->spec(), "int8:block=2048");
  EXPECT_EQ(make_codec("int4")->spec(), "int4:block=128");
  EXPECT_EQ(make_codec("int4:scheme=symmetric,rounding=nearest,scale=fp32,block=64")->spec(),
            "int4:block=64");
  EXPECT_EQ(make_codec("int4:scheme=deepspeed,rounding=stochastic")->spec(),
            "int4:block=128,rounding=stochastic,scheme=deepspeed");
  EXPECT_EQ(make_codec("fp16")->spec(), "fp16");
}

TEST(Registry, IdentityTakesTheWireDtype) {
  EXPECT_EQ(make_codec("identity")->wire_bytes(10).exact, 40U);
  for (const Dtype d : {Dtype::kBF16, Dtype::kF16}) {
    const auto codec = make_codec("identity", d);
    EXPECT_EQ(codec->wire_bytes(10).exact, 20U);
    EXPECT_EQ(codec->spec(), "identity");
    EXPECT_TRUE(codec->traits().exact);
  }
  EXPECT_EQ(make_codec("identity:dtype=fp32", Dtype::kF16)->wire_bytes(10).exact, 40U);
  EXPECT_EQ(make_codec("int8", Dtype::kF16)->spec(), make_codec("int8")->spec());
}

TEST(Registry, UnknownNamesListTheKnown) {
  const std::string error = error_of("int9");
  for (const CodecEntry& e : codec_entries()) EXPECT_THAT(error, HasSubstr(e.name));
  EXPECT_THAT(error, HasSubstr("'int9'"));
  EXPECT_THAT(error_of(""), HasSubstr("int8"));
  EXPECT_THAT(error_of("INT8"), HasSubstr("'INT8'"));
}

TEST(Registry, UnknownKeysListTheKnown) {
  const std::string error = error_of("int4:blok=128");
  for (const char* key : {"block", "rounding", "scheme", "scale", "'blok'"}) {
    EXPECT_THAT(error, HasSubstr(key));
  }
  EXPECT_THAT(error_of("fp32:block=1"), HasSubstr("no keys"));
}

TEST(Registry, BadValuesNameWhatIsAllowed) {
  for (const char* bad : {"0", "-1", "1073741825", "18446744073709551616", "64k", "1.5"}) {
    EXPECT_THAT(error_of(std::string("int8:block=") + bad), HasSubstr("1 to 1073741824"));
  }
  EXPECT_EQ(make_codec("int8:block=1073741824")->traits().block, 1073741824U);
  EXPECT_THAT(error_of("int8:rounding=up"), HasSubstr("nearest or stochastic"));
  EXPECT_THAT(error_of("int8:scheme=x"), HasSubstr("symmetric or deepspeed"));
  EXPECT_THAT(error_of("int8:scale=fp8"), HasSubstr("fp32"));
  for (const char* bad : {"int4:rounding=shift", "int1:rounding=shift",
                          "int4:rounding=shift,scale=bf16,scheme=asymmetric",
                          "mxfp4:rounding=shift", "nvfp4:rounding=shift"}) {
    EXPECT_THAT(error_of(bad), HasSubstr("with scheme=asymmetric,scale=fp32 of int2 to int8"))
        << bad;
  }
  for (const char* bad : {"int4:spikes=1", "int5:spikes=1", "int8:scheme=deepspeed,spikes=1"}) {
    EXPECT_THAT(error_of(bad), HasSubstr("spikes=1 with scheme=asymmetric")) << bad;
  }
  EXPECT_THAT(error_of("nvfp4:rounding=stochastic,scale=4over6"), HasSubstr("scale=max"));
  for (const char* bad : {"powersgd", "powersgd:rank=2", "ef|powersgd"}) {
    EXPECT_THAT(error_of(bad), HasSubstr("zeropp.codecs.gradients")) << bad;
  }
  EXPECT_THAT(error_of("identity:dtype=int"), HasSubstr("bf16"));
}

TEST(Registry, SyntaxErrors) {
  for (const char* bad :
       {"int8:", "int8:block", "int8:block=", "int8:=1", "int8:block=1,", "int8:,block=1"}) {
    EXPECT_THAT(error_of(bad), HasSubstr("key=value")) << bad;
  }
  EXPECT_THAT(error_of("int8:block=1,block=2"), HasSubstr("once"));
}

TEST(Registry, DecoratorsComeInsideOut) {
  CodecEntry wrap{.name = "wrap",
                  .help = "a test",
                  .params = {{"n", "1", "a number"}, {"m", "2", "another"}},
                  .examples = {},
                  .make = {},
                  .decorate = [](const CodecSpec& s, CodecPtr inner) -> CodecPtr {
                    const auto n = s.args.find("n");
                    if (n != s.args.end() && n->second == "16") return make_codec("fp16");
                    return inner;
                  }};
  register_codec(wrap);
  EXPECT_EQ(make_codec("wrap|int4:block=64")->spec(), make_codec("int4:block=64")->spec());
  EXPECT_EQ(make_codec("wrap(16)|int4")->spec(), "fp16");
  EXPECT_EQ(make_codec("wrap(m=3,n=16)|wrap|int4")->spec(), "fp16");
  EXPECT_EQ(make_codec("wrap|identity", Dtype::kBF16)->spec(),
            make_codec("identity", Dtype::kBF16)->spec());
  for (const char* bad : {"wrap", "wrap|", "|int4", "wrap()|int4", "wrap(3|int4", "int4|int8",
                          "wrap(1,2)|int4", "wrap(n=1,n=2)|int4", "wrap(k=1)|int4"}) {
    EXPECT_THROW(make_codec(bad), UsageError) << bad;
  }
  EXPECT_THAT(error_of("absent(0.8)|int4"), HasSubstr("absent"));
  std::string many = "int4";
  for (int i = 0; i < 16; ++i) many.insert(0, "wrap|");
  EXPECT_EQ(make_codec(many)->spec(), make_codec("int4")->spec());
  EXPECT_THAT(error_of("wrap|" + many), HasSubstr("at most 16 decorators"));
}

TEST(Registry, DeltaMarksItsCodecAndComesFirst) {
  const auto codec = make_codec("delta|int4:block=2048");
  const auto plain = make_codec("int4:block=2048");
  EXPECT_EQ(codec->spec(), "delta|int4:block=2048");
  EXPECT_TRUE(codec->traits().difference);
  EXPECT_FALSE(plain->traits().difference);
  EXPECT_EQ(codec->wire_bytes(5000), plain->wire_bytes(5000));
  EXPECT_EQ(make_codec("delta|identity", Dtype::kBF16)->wire_bytes(10).exact, 20U);
  CodecEntry outer{.name = "outer",
                   .help = "a test",
                   .params = {},
                   .examples = {"outer|int4"},
                   .make = {},
                   .decorate = [](const CodecSpec&, CodecPtr inner) { return inner; }};
  register_codec(outer);
  EXPECT_TRUE(make_codec("delta|outer|int4")->traits().difference);
  for (const char* bad : {"outer|delta|int4", "delta|delta|int4"}) {
    EXPECT_THAT(error_of(bad), HasSubstr("'delta' before all other decorators")) << bad;
  }
  EXPECT_THAT(error_of("delta(1)|int4"), HasSubstr("decorator(key=value"));
  EXPECT_THAT(error_of("delta(x=1)|int4"), HasSubstr("no keys"));
}

/// int4 that claims to keep residuals.
class Stateful final : public Codec {
 public:
  explicit Stateful(CodecPtr inner) : inner_(std::move(inner)) {}
  const std::string& spec() const override { return inner_->spec(); }
  CodecTraits traits() const override {
    CodecTraits traits = inner_->traits();
    traits.stateful = true;
    return traits;
  }
  WireBytes wire_bytes(std::size_t n) const override { return inner_->wire_bytes(n); }
  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const override {
    return inner_->encode(x, ctx, wire);
  }
  void decode(std::span<const std::byte> wire, MutView out) const override {
    inner_->decode(wire, out);
  }

 private:
  CodecPtr inner_;
};

TEST(Registry, DeltaTakesNoCodecWithState) {
  register_codec({.name = "keeps",
                  .help = "a test",
                  .params = {},
                  .examples = {"keeps|int4"},
                  .make = {},
                  .decorate = [](const CodecSpec&, CodecPtr inner) -> CodecPtr {
                    return std::make_shared<Stateful>(std::move(inner));
                  }});
  EXPECT_THAT(error_of("delta|keeps|int4"), HasSubstr("without state"));
}

TEST(Registry, TakesPluginsOnce) {
  CodecEntry mine{.name = "mine",
                  .help = "a test",
                  .params = {{"twice", "no", "yes or no"}},
                  .examples = {},
                  .make =
                      [](const CodecSpec& s) {
                        return make_codec(s.args.count("twice") != 0 ? "bf16" : "fp16");
                      },
                  .decorate = {}};
  register_codec(mine);
  EXPECT_EQ(make_codec("mine")->spec(), "fp16");
  EXPECT_EQ(make_codec("mine:twice=yes")->spec(), "bf16");
  EXPECT_EQ(codec_entries().back().name, "mine");
  EXPECT_THROW(register_codec(mine), UsageError);
  mine.name = "int8";
  EXPECT_THROW(register_codec(mine), UsageError);
  mine.name = "a:b";
  EXPECT_THROW(register_codec(mine), UsageError);
  mine.name = "no_factory";
  mine.make = nullptr;
  EXPECT_THROW(register_codec(mine), UsageError);
}

TEST(Registry, EveryEntryIsDocumented) {
  for (const CodecEntry& e : codec_entries()) {
    if (e.name == "mine" || e.name == "wrap") continue;
    EXPECT_FALSE(e.help.empty());
    EXPECT_FALSE(e.examples.empty());
    for (const CodecParam& p : e.params) {
      EXPECT_FALSE(p.key.empty() || p.fallback.empty() || p.help.empty());
    }
  }
}

}  // namespace
}  // namespace zeropp::quant
