#include "quant/memory.h"

#include <atomic>
#include <cstring>

#include "quant/block_cache.h"

namespace zeropp::quant {
namespace {

std::atomic<bool> poison{false};

// An empty buffer still owns an address, so that "has been made" and "has elements" differ.
constexpr std::size_t allocation_size(std::size_t bytes) { return bytes == 0 ? 1 : bytes; }

}  // namespace

std::string_view name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kParams:
      return "params";
    case MemoryKind::kGrads:
      return "grads";
    case MemoryKind::kMaster:
      return "master";
    case MemoryKind::kMomentum:
      return "m";
    case MemoryKind::kVariance:
      return "v";
    case MemoryKind::kSecondary:
      return "secondary";
    case MemoryKind::kGathered:
      return "gathered";
    case MemoryKind::kComm:
      return "comm";
    case MemoryKind::kResidual:
      return "residual";
    case MemoryKind::kActivation:
      return "activation";
    case MemoryKind::kWorkspace:
      return "workspace";
    case MemoryKind::kHost:
      return "host";
  }
  return "?";
}

Buffer::Buffer(MemoryTracker* tracker, MemoryKind kind, std::size_t bytes)
    : tracker_(tracker), kind_(kind), bytes_(bytes) {
  data_ = allocate_block(allocation_size(bytes));
  if (tracker_ != nullptr) {
    try {
      tracker_->on_allocate(kind_, bytes_);
    } catch (...) {
      free_block(data_, allocation_size(bytes));
      throw;
    }
  }
  if (poison.load(std::memory_order_relaxed)) std::memset(data_, 0xFF, bytes_);
}

void Buffer::reset() noexcept {
  if (data_ == nullptr) return;
  free_block(data_, allocation_size(bytes_));
  if (tracker_ != nullptr) tracker_->on_free(kind_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
  tracker_ = nullptr;
}

void Buffer::untrack() noexcept {
  if (tracker_ != nullptr) tracker_->on_free(kind_, bytes_);
  tracker_ = nullptr;
}

void Buffer::zero() {
  if (bytes_ != 0) std::memset(data_, 0, bytes_);
}

void Buffer::set_poison(bool on) { poison.store(on, std::memory_order_relaxed); }

}  // namespace zeropp::quant
