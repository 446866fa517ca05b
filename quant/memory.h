#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "quant/dtype.h"

namespace zeropp::quant {

/// Kinds of memory on a rank, as the memory ledger books them.
enum class MemoryKind : std::uint8_t {
  kParams,
  kGrads,
  kMaster,
  kMomentum,
  kVariance,
  kSecondary,  // model states
  kGathered,
  kComm,
  kResidual,
  kActivation,
  kWorkspace,
  kHost,
};
inline constexpr int kMemoryKinds = 12;
std::string_view name(MemoryKind kind);

/// Who is told of allocations. One per rank; not thread-safe (a rank is one thread of control).
class MemoryTracker {
 public:
  virtual ~MemoryTracker() = default;
  virtual void on_allocate(MemoryKind kind, std::size_t bytes) = 0;
  virtual void on_free(MemoryKind kind, std::size_t bytes) noexcept = 0;
};

/// Owning, 64-byte aligned, uninitialised bytes, booked under one kind.
/// In poison mode (`set_poison(true)`, tests) new bytes are 0xFF: NaN in every dtype.
class Buffer {
 public:
  Buffer() = default;
  Buffer(MemoryTracker* tracker, MemoryKind kind, std::size_t bytes);  ///< tracker may be null.
  ~Buffer() { reset(); }
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    Buffer moved(std::move(o));
    swap(moved);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void reset() noexcept;
  /// The memory stays, but is no longer booked: for a buffer that outlives its tracker.
  void untrack() noexcept;
  void swap(Buffer& o) noexcept {
    std::swap(tracker_, o.tracker_);
    std::swap(kind_, o.kind_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
  }
  std::size_t bytes() const { return bytes_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::span<std::byte> span() { return {data_, bytes_}; }
  std::span<const std::byte> span() const { return {data_, bytes_}; }
  void zero();
  explicit operator bool() const { return data_ != nullptr; }

  static void set_poison(bool on);

 private:
  MemoryTracker* tracker_ = nullptr;
  MemoryKind kind_ = MemoryKind::kWorkspace;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A Buffer of n elements of one dtype.
class Tensor {
 public:
  Tensor() = default;
  Tensor(MemoryTracker* tracker, MemoryKind kind, Dtype dtype, std::size_t n)
      : buffer_(tracker, kind, n * size_of(dtype)), dtype_(dtype), n_(n) {}
  MutView view() { return {buffer_.data(), dtype_, n_}; }
  ConstView view() const { return {buffer_.data(), dtype_, n_}; }
  float* f32() { return reinterpret_cast<float*>(buffer_.data()); }
  const float* f32() const { return reinterpret_cast<const float*>(buffer_.data()); }
  std::size_t size() const { return n_; }
  Dtype dtype() const { return dtype_; }
  void zero() { buffer_.zero(); }
  void reset() {
    buffer_.reset();
    n_ = 0;
  }
  explicit operator bool() const { return static_cast<bool>(buffer_); }

 private:
  Buffer buffer_;
  Dtype dtype_ = Dtype::kF32;
  std::size_t n_ = 0;
};

}  // namespace zeropp::quant
