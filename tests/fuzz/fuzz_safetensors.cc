// Headers of .safetensors files: refused with a UsageError, or every tensor lies inside the
// file.

#include <string_view>

#include "experiments/safetensors/reader.h"
#include "quant/error.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace zeropp::experiments;  // NOLINT
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    for (const SafeTensor& t : parse_safetensors(bytes, "fuzz")) {
      zeropp::fuzz::promise(t.begin <= size && t.bytes <= size - t.begin,
                            "tensors lie inside the file");
      zeropp::fuzz::promise(!t.float_dtype || t.bytes == t.elements * size_of(*t.float_dtype),
                            "bytes are elements times their size");
    }
    // A header without the eight bytes before it, in a file of 2^40 bytes.
    parse_safetensors_header(bytes, std::uint64_t{1} << 40, "fuzz");
  } catch (const zeropp::UsageError&) {
  }
  return 0;
}
