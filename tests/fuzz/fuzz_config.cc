// Configs of `zeropp run`: any text is refused with a UsageError or is a config.

#include <string_view>

#include "experiments/run_config.h"
#include "quant/error.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    zeropp::experiments::parse_run_config(text, "fuzz");
  } catch (const zeropp::UsageError&) {
  }
  return 0;
}
