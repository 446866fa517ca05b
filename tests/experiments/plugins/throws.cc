// A plug-in whose codec breaks on one rank in the middle of a run.

#include <memory>
#include <stdexcept>

#include "quant/convert.h"
#include "quant/plugin.h"

namespace {

using namespace zeropp::quant;  // NOLINT: a library of one file.

/// bf16 that rank 3 cannot encode after two steps.
class ThrowingCodec final : public Codec {
 public:
  const std::string& spec() const override { return spec_; }
  CodecTraits traits() const override {
    CodecTraits t;
    t.max_error = 0x1p-8;
    t.floor = 0x1p-120;
    return t;
  }
  WireBytes wire_bytes(std::size_t n) const override { return {.payload = 2 * n}; }
  std::size_t encode(ConstView x, const CodecContext& context,
                     std::span<std::byte> wire) const override {
    if (context.sender == 3 && context.step >= 2) throw std::runtime_error("encode is broken");
    convert(x, {wire.data(), Dtype::kBF16, x.n});
    return 2 * x.n;
  }
  void decode(std::span<const std::byte> wire, MutView out) const override {
    convert({wire.data(), Dtype::kBF16, out.n}, out);
  }

 private:
  std::string spec_ = "throws";
};

}  // namespace

ZEROPP_PLUGIN {
  register_codec(
      {.name = "throws",
       .help = "breaks",
       .params = {},
       .examples = {"throws"},
       .make = [](const CodecSpec&) { return std::make_shared<const ThrowingCodec>(); },
       .decorate = {}});
}
