// The codec "log": a sign and the nearest power of two, 8 bits a number and no scale. Its code
// is 0 for zero, 127 for what is not finite, else the exponent + 63 clamped to 1 .. 126.

#include <cmath>
#include <cstddef>
#include <memory>
#include <string>

#include "quant/convert.h"
#include "quant/error.h"
#include "quant/plugin.h"

namespace {

using namespace zeropp::quant;  // NOLINT: a library of one file.

class LogCodec final : public Codec {
 public:
  const std::string& spec() const override { return spec_; }
  CodecTraits traits() const override {
    CodecTraits t;
    // A third at most, but what lies above 2^63 clips.
    t.max_error = 1;
    t.floor = 0x1p-62;  // The smallest number above zero.
    return t;
  }
  WireBytes wire_bytes(std::size_t n) const override { return {.payload = n}; }

  std::size_t encode(ConstView x, const CodecContext&,
                     std::span<std::byte> wire) const override {
    require(wire.size(), x.n);
    for (std::size_t i = 0; i < x.n; ++i) {
      float v = 0;
      convert(x.slice(i, 1), {&v, Dtype::kF32, 1});
      wire[i] = static_cast<std::byte>(code(v));
    }
    return x.n;
  }
  void decode(std::span<const std::byte> wire, MutView out) const override {
    require(wire.size(), out.n);
    for (std::size_t i = 0; i < out.n; ++i) {
      const float v = value(static_cast<unsigned>(wire[i]));
      convert({&v, Dtype::kF32, 1}, out.slice(i, 1));
    }
  }

 private:
  void require(std::size_t found, std::size_t needed) const {
    if (found >= needed) return;
    throw zeropp::UsageError(spec_, std::to_string(needed) + " bytes", std::to_string(found));
  }
  static unsigned code(float v) {
    const unsigned sign = std::signbit(v) ? 128 : 0;
    if (!std::isfinite(v)) return sign + 127;
    if (v == 0) return sign;
    int exponent = 0;
    const float part = std::frexp(std::fabs(v), &exponent);  // [0.5, 1) * 2^exponent
    if (part < 0.75F) --exponent;
    return sign + static_cast<unsigned>(std::min(std::max(exponent + 63, 1), 126));
  }
  static float value(unsigned code) {
    const int low = static_cast<int>(code & 127);
    const float size = low == 0 ? 0.0F : low == 127 ? NAN : std::ldexp(1.0F, low - 63);
    return (code & 128) != 0 ? -size : size;
  }
  std::string spec_ = "log";
};

}  // namespace

ZEROPP_PLUGIN {
  register_codec({.name = "log",
                  .help = "sign and nearest power of two, 8 bits, no scale",
                  .params = {},
                  .examples = {"log"},
                  .make = [](const CodecSpec&) { return std::make_shared<const LogCodec>(); },
                  .decorate = {}});
}
