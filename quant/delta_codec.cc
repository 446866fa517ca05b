// Weight differences: SDP4Bit's qWD (Jia et al., NeurIPS 2024). What is sent is the inner
// codec's code of d = master - reference; whoever decodes adds it to a reference of its own.
// The caller takes the difference and keeps the reference (hierarchy::GatherTensor): the codec
// only says that it is one.

#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/error.h"

namespace zeropp::quant {
namespace {

class DeltaCodec final : public Codec {
 public:
  explicit DeltaCodec(CodecPtr inner)
      : inner_(std::move(inner)), spec_("delta|" + inner_->spec()) {}

  const std::string& spec() const override { return spec_; }
  CodecTraits traits() const override {
    CodecTraits traits = inner_->traits();
    traits.difference = true;
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
  void decode_add(std::span<const std::byte> wire, std::span<float> sum) const override {
    inner_->decode_add(wire, sum);
  }
  void decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                  MutView out) const override {
    inner_->decode_sum(wires, divisor, out);
  }

 private:
  CodecPtr inner_;
  std::string spec_;
};

CodecPtr make_delta(const CodecSpec& spec, CodecPtr inner) {
  const CodecTraits traits = inner->traits();
  if (traits.stateful || traits.receiver_state) {
    throw UsageError("codec " + spec.name,
                     "a codec without state: the next difference already holds what this one "
                     "lost, a residual would send it twice",
                     "'" + inner->spec() + "'");
  }
  return std::make_shared<DeltaCodec>(std::move(inner));
}

}  // namespace

std::vector<CodecEntry> delta_codecs() {
  return {{.name = "delta",
           .help = "weights as differences to what every rank holds already (SDP4Bit's qWD)",
           .params = {},
           .examples = {"delta|int4:block=2048", "delta|bf16"},
           .make = {},
           .decorate = make_delta}};
}

}  // namespace zeropp::quant
