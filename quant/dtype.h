#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace zeropp::quant {

/// Element types of tensors. Numbers on the wire are bytes; see codec.h.
enum class Dtype : std::uint8_t { kF32, kBF16, kF16 };

constexpr std::size_t size_of(Dtype d) { return d == Dtype::kF32 ? 4 : 2; }

/// "fp32", "bf16", "fp16".
std::string_view name(Dtype d);
/// Accepts the names above and torch's ("float32", "bfloat16", "float16"); else UsageError.
Dtype parse_dtype(std::string_view text);

/// A contiguous run of `n` elements that somebody else owns.
struct ConstView {
  const void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  std::size_t n = 0;

  std::size_t bytes() const { return n * size_of(dtype); }
  ConstView slice(std::size_t first, std::size_t count) const {
    return {static_cast<const std::byte*>(data) + first * size_of(dtype), dtype, count};
  }
  std::span<const std::byte> as_bytes() const {
    return {static_cast<const std::byte*>(data), bytes()};
  }
};

struct MutView {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  std::size_t n = 0;

  std::size_t bytes() const { return n * size_of(dtype); }
  MutView slice(std::size_t first, std::size_t count) const {
    return {static_cast<std::byte*>(data) + first * size_of(dtype), dtype, count};
  }
  std::span<std::byte> as_bytes() const { return {static_cast<std::byte*>(data), bytes()}; }
  operator ConstView() const { return {data, dtype, n}; }  // NOLINT: a view of const is a view.
};

inline ConstView view(std::span<const float> x) { return {x.data(), Dtype::kF32, x.size()}; }
inline MutView mut_view(std::span<float> x) { return {x.data(), Dtype::kF32, x.size()}; }

}  // namespace zeropp::quant
