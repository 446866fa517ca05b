// Reductions between block codecs whose tiles do not coincide, over many tiles.

#include "quant/tiled_codec.h"

#include <gtest/gtest.h>

#include "quant/registry.h"
#include "tests/quant/codec_data.h"

namespace zeropp::quant {
namespace {

using namespace testing_support;  // NOLINT

TEST(TiledReduce, EqualsTheSumThenTheEncoding) {
  // Blocks below, beside and above a tile; codecs that read the sum twice.
  const std::vector<std::string> specs{"int5:block=37",
                                       "int4:block=300,scheme=asymmetric",
                                       "int3:block=5000,scale=bf16",
                                       "mxfp4",
                                       "nvfp4:scale=4over6",
                                       "fp8:block=0",
                                       "fp8:block=9000",
                                       "mxfp6",
                                       "nf4:rounding=stochastic",
                                       "int8:block=48",
                                       "int4",
                                       "int4:rounding=correlated"};
  constexpr std::size_t kSources = 3;
  for (const std::size_t n : {std::size_t{1}, std::size_t{4096}, std::size_t{20003}}) {
    for (const std::string& from_spec : specs) {
      const auto from = make_codec(from_spec);
      std::vector<Bytes> encoded;
      for (std::uint32_t s = 0; s < kSources; ++s) {
        encoded.push_back(encode(*from, view(make_data("normal", n, s)), context(s)));
      }
      const std::vector<std::span<const std::byte>> wires(encoded.begin(), encoded.end());
      std::vector<float> mean(n);
      from->decode_sum(wires, kSources, mut_view(mean));
      for (const std::string& to_spec : specs) {
        const auto to = make_codec(to_spec);
        Bytes wire(to->max_wire_size(n));
        wire.resize(to->reduce_encode(*from, wires, n, kSources, context(), wire));
        ASSERT_TRUE(wire == encode(*to, view(mean)))
            << from_spec << " to " << to_spec << ' ' << n;
      }
    }
  }
}

TEST(TiledReduce, ChecksItsWires) {
  const auto codec = make_codec("mxfp4");
  Bytes wire(codec->max_wire_size(100));
  const std::vector<std::span<const std::byte>> cut{std::span(wire).first(wire.size() - 1)};
  Bytes out(wire.size());
  EXPECT_ANY_THROW(codec->reduce_encode(*codec, cut, 100, 1, context(), out));
  EXPECT_ANY_THROW(codec->reduce_encode(*codec, {}, 100, 1, context(), out));
  const std::vector<std::span<const std::byte>> whole{wire};
  EXPECT_ANY_THROW(codec->reduce_encode(*codec, whole, 100, 1, context(),
                                        std::span(out).first(out.size() - 1)));
}

}  // namespace
}  // namespace zeropp::quant
