// Codec specs: any text is refused with a UsageError or gives a codec whose spec() reads back
// as itself and whose sizes do not wrap round.

#include <string_view>

#include "quant/error.h"
#include "quant/registry.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace zeropp::quant;  // NOLINT
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CodecPtr codec;
  try {
    codec = make_codec(text);
  } catch (const zeropp::UsageError&) {
    return 0;
  }
  zeropp::fuzz::promise(make_codec(codec->spec())->spec() == codec->spec(),
                        "a spec reads back as itself");
  std::uint64_t before = 0;
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{129},
                              std::size_t{1} << 31, std::size_t{1} << 40}) {
    const std::uint64_t bytes = codec->wire_bytes(n).total();
    zeropp::fuzz::promise(bytes >= before && bytes <= 16 * n + 64, "sizes are monotone");
    before = bytes;
  }
  return 0;
}
