// A user's program on the installed package: one codec there and back.
#include <cmath>
#include <cstdio>
#include <vector>

#include "quant/codec.h"
#include "quant/registry.h"

int main() {
  namespace quant = zeropp::quant;
  const auto codec = quant::make_codec("int8");
  std::vector<float> x(1000), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  std::vector<std::byte> wire(codec->max_wire_size(x.size()));
  const std::size_t sent = codec->encode(quant::view(x), {}, wire);
  codec->decode({wire.data(), sent}, quant::mut_view(y));

  float worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::fmax(worst, std::fabs(x[i] - y[i]));
  std::printf("%s: %zu floats in %zu bytes, largest error %g\n", codec->spec().c_str(),
              x.size(), sent, static_cast<double>(worst));
  return sent < 2 * x.size() && worst > 0 && worst <= 0.5F / 127 * 1.001F ? 0 : 1;
}
