#pragma once

// Plain loops that define what the SIMD and CUDA kernels must produce, bit for bit. Pointers
// may have any alignment.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "quant/convert.h"
#include "quant/dtype.h"

namespace zeropp::quant::reference {

/// Element i of a view as fp32, and its opposite.
inline float load(ConstView x, std::size_t i) {
  const auto* at = static_cast<const std::byte*>(x.data) + i * size_of(x.dtype);
  if (x.dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return x.dtype == Dtype::kBF16 ? from_bf16_bits(bits) : from_f16_bits(bits);
}

inline void store(MutView x, std::size_t i, float value) {
  auto* at = static_cast<std::byte*>(x.data) + i * size_of(x.dtype);
  if (x.dtype == Dtype::kF32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = x.dtype == Dtype::kBF16 ? bf16_bits(value) : f16_bits(value);
  std::memcpy(at, &bits, sizeof bits);
}

/// Sums and quotients that are NaN become this one NaN: which operand's payload (or sign)
/// survives differs between instruction sets.
inline float canonical(float x) {
  return x == x ? x : std::bit_cast<float>(std::uint32_t{0x7FC00000});
}

void convert(ConstView src, MutView dst);
void accumulate(MutView acc, ConstView x);
void divide(ConstView src, float divisor, MutView dst);
bool all_finite(ConstView x);
std::uint64_t divide_add(ConstView x, float divisor, ConstView before, MutView to);

}  // namespace zeropp::quant::reference
