// Plug-ins that do one thing wrong each; FAULT says which.

#include <cstring>
#include <memory>

#include "quant/convert.h"
#include "quant/plugin.h"

namespace {

using namespace zeropp::quant;  // NOLINT: a library of one file.

/// bf16, but for its faults: it writes the last number of no span and checks no size.
class FaultyCodec final : public Codec {
 public:
  const std::string& spec() const override { return spec_; }
  CodecTraits traits() const override {
    CodecTraits t;
    t.max_error = 0x1p-8;
    t.floor = 0x1p-120;
    return t;
  }
  WireBytes wire_bytes(std::size_t n) const override { return {.payload = 2 * n}; }
  std::size_t encode(ConstView x, const CodecContext&,
                     std::span<std::byte> wire) const override {
    if (x.n > 1) convert(x.slice(0, x.n - 1), {wire.data(), Dtype::kBF16, x.n - 1});
    return 2 * x.n;
  }
  void decode(std::span<const std::byte> wire, MutView out) const override {
    convert({wire.data(), Dtype::kBF16, out.n}, out);
  }

 private:
  std::string spec_ = "faulty";
};

CodecEntry entry(const char* name) {
  return {.name = name,
          .help = "a codec with faults",
          .params = {},
          .examples = {name},
          .make = [](const CodecSpec&) { return std::make_shared<const FaultyCodec>(); },
          .decorate = {}};
}

}  // namespace

#if defined(FAULT_ABI)
extern "C" long long zeropp_plugin_abi() { return 999; }
extern "C" void zeropp_register_codecs() { register_codec(entry("faulty")); }
#elif defined(FAULT_TAKEN)
ZEROPP_PLUGIN { register_codec(entry("int8")); }
#elif defined(FAULT_NONE)
ZEROPP_PLUGIN { static_cast<void>(entry); }
#elif defined(FAULT_SYMBOL)
extern "C" void zeropp_no_such_function();
ZEROPP_PLUGIN {
  zeropp_no_such_function();
  register_codec(entry("faulty"));
}
#else
ZEROPP_PLUGIN { register_codec(entry("faulty")); }
#endif
