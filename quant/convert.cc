#include "quant/convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "quant/error.h"
#include "quant/kernels.h"

namespace zeropp::quant {
namespace {

constexpr std::uint32_t kSign = 0x80000000, kInfBits = 0x7F800000;

void require_equal_sizes(const char* what, std::size_t a, std::size_t b) {
  if (a != b) throw UsageError(what, std::to_string(b) + " elements", std::to_string(a));
}

}  // namespace

std::uint16_t bf16_bits(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & ~kSign) > kInfBits) return static_cast<std::uint16_t>((u >> 16) | 0x40);
  return static_cast<std::uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

std::uint16_t f16_bits(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u & kSign) >> 16, a = u & ~kSign;
  std::uint32_t h;
  if (a > kInfBits) {
    h = 0x7E00 | ((a >> 13) & 0x3FF);  // Quiet, with the upper payload bits.
  } else if (a >= 0x477FF000) {        // 65520 and up round to infinity.
    h = 0x7C00;
  } else if (a < 0x38800000) {  // Below 2^-14: adding 0.5 rounds to multiples of 2^-24.
    const float shifted = std::bit_cast<float>(a) + 0.5F;
    h = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F);
  } else {
    h = (a + 0xFFF + ((a >> 13) & 1) - 0x38000000) >> 13;
  }
  return static_cast<std::uint16_t>(sign | h);
}

float from_f16_bits(std::uint16_t b) {
  const std::uint32_t sign = static_cast<std::uint32_t>(b & 0x8000) << 16;
  const std::uint32_t exponent = b & 0x7C00, mantissa = b & 0x3FF;
  std::uint32_t u;
  if (exponent == 0x7C00) {
    u = kInfBits | (mantissa << 13) | (mantissa != 0 ? 0x400000U : 0U);
  } else if (exponent == 0) {
    u = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24F);
  } else {
    u = (static_cast<std::uint32_t>(b & 0x7FFF) << 13) + 0x38000000;
  }
  return std::bit_cast<float>(sign | u);
}

float round_to(Dtype d, float x) {
  switch (d) {
    case Dtype::kBF16:
      return from_bf16_bits(bf16_bits(x));
    case Dtype::kF16:
      return from_f16_bits(f16_bits(x));
    case Dtype::kF32:
      break;
  }
  return x;
}

void convert(ConstView src, MutView dst) {
  require_equal_sizes("convert", dst.n, src.n);
  if (src.n == 0) return;
  if (src.dtype == dst.dtype) {
    if (src.data != dst.data) std::memcpy(dst.data, src.data, src.bytes());
    return;
  }
  kernels::convert(src, dst);
}

void accumulate(MutView acc, ConstView x) {
  require_equal_sizes("accumulate", x.n, acc.n);
  kernels::accumulate(acc, x);
}

void divide(ConstView src, float divisor, MutView dst) {
  require_equal_sizes("divide", dst.n, src.n);
  kernels::divide(src, divisor, dst);
}

std::uint64_t divide_add(ConstView x, float divisor, ConstView before, MutView to) {
  require_equal_sizes("divide_add", x.n, to.n);
  if (before.data != nullptr) {
    require_equal_sizes("divide_add", before.n, to.n);
    if (before.dtype != to.dtype) {
      throw UsageError("divide_add", name(to.dtype), name(before.dtype));
    }
  }
  return kernels::divide_add(x, divisor, before, to);
}

double sum_squares(ConstView x) {
  constexpr std::size_t kLanes = 8, kChunk = 1024;
  std::array<double, kLanes> sums{};
  std::array<float, kChunk> chunk;
  for (std::size_t first = 0; first < x.n; first += kChunk) {
    const std::size_t m = std::min(kChunk, x.n - first);
    convert(x.slice(first, m), mut_view(std::span(chunk).first(m)));
    // Zeros past the end add +0 to sums that are never -0.
    const std::size_t padded = (m + kLanes - 1) / kLanes * kLanes;
    std::fill(chunk.begin() + static_cast<std::ptrdiff_t>(m),
              chunk.begin() + static_cast<std::ptrdiff_t>(padded), 0.0F);
    for (std::size_t i = 0; i < padded; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const double value = chunk[i + lane];
        sums[lane] += value * value;
      }
    }
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
         ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

bool all_finite(ConstView x) { return kernels::all_finite(x); }

}  // namespace zeropp::quant
