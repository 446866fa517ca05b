#include "quant/dtype.h"

#include "quant/error.h"

namespace zeropp::quant {

std::string_view name(Dtype d) {
  switch (d) {
    case Dtype::kF32:
      return "fp32";
    case Dtype::kBF16:
      return "bf16";
    case Dtype::kF16:
      return "fp16";
  }
  return "?";
}

Dtype parse_dtype(std::string_view text) {
  if (text == "fp32" || text == "float32" || text == "float") return Dtype::kF32;
  if (text == "bf16" || text == "bfloat16") return Dtype::kBF16;
  if (text == "fp16" || text == "float16" || text == "half") return Dtype::kF16;
  throw UsageError("dtype", "fp32, bf16 or fp16", "'" + std::string(text) + "'");
}

}  // namespace zeropp::quant
