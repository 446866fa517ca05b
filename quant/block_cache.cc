#include "quant/block_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>

namespace zeropp::quant {
namespace {

constexpr std::size_t kAlign = 64;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif
#else
constexpr bool kKeeps = true;
#endif

std::byte* fresh(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlign}));
}
void destroy(std::byte* block) noexcept { ::operator delete (block, std::align_val_t{kAlign}); }

/// Sizes of blocks: multiples of 64 up to 512, then eight between powers of two, so that blocks
/// of similar calls fit each other. `index` counts them.
struct SizeClass {
  std::size_t bytes = 0;
  std::size_t index = 0;
};
constexpr std::size_t kFine = 512, kPerOctave = 8;

SizeClass size_class(std::size_t bytes) {
  if (bytes <= kFine) {
    const std::size_t units = (bytes + kAlign - 1) / kAlign;
    return {units * kAlign, units - 1};
  }
  const auto octave = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 1;
  const std::size_t step = (std::size_t{1} << octave) / kPerOctave;
  const std::size_t units = (bytes + step - 1) / step;  // kPerOctave + 1 .. 2 * kPerOctave.
  return {units * step, kPerOctave * (octave - 9) + units - 1};
}

constexpr std::size_t kClasses = kPerOctave * (64 - 9 + 2);

/// True from the end of the thread's cache on: buffers of static storage may outlive it.
thread_local bool ended = false;

/// Free blocks of a class are a stack whose links lie in the blocks themselves.
class BlockCache {
 public:
  ~BlockCache() {
    shrink_to(0);
    ended = true;
  }

  std::byte* take(const SizeClass& size) {
    std::byte* block = pop(size);
    if (block == nullptr) {
      block = fresh(size.bytes);
      use(size.bytes);
      shrink_to(most_used_ - used_);
    } else {
      use(size.bytes);
    }
    return block;
  }

  void give(std::byte* block, const SizeClass& size) noexcept {
    used_ -= std::min(used_, size.bytes);  // It may be another thread's.
    Stack& stack = stacks_[size.index];
    stack.bytes = size.bytes;
    std::memcpy(block, &stack.top, sizeof stack.top);
    stack.top = block;
    kept_bytes_ += size.bytes;
    largest_ = std::max(largest_, size.index);
    shrink_to(most_used_ - used_);
  }

  std::size_t kept_bytes() const { return kept_bytes_; }

 private:
  struct Stack {
    std::byte* top = nullptr;
    std::size_t bytes = 0;
  };

  void use(std::size_t bytes) {
    used_ += bytes;
    most_used_ = std::max(most_used_, used_);
  }

  std::byte* pop(const SizeClass& size) {
    Stack& stack = stacks_[size.index];
    std::byte* block = stack.top;
    if (block == nullptr) return nullptr;
    std::memcpy(&stack.top, block, sizeof stack.top);
    kept_bytes_ -= size.bytes;
    return block;
  }

  void shrink_to(std::size_t bytes) noexcept {
    while (kept_bytes_ > bytes) {
      while (stacks_[largest_].top == nullptr) --largest_;
      destroy(pop({stacks_[largest_].bytes, largest_}));
    }
  }

  std::array<Stack, kClasses> stacks_{};
  std::size_t largest_ = 0;  ///< No class above it keeps a block.
  std::size_t kept_bytes_ = 0;
  std::size_t used_ = 0, most_used_ = 0;
};

BlockCache& cache() {
  thread_local BlockCache of_this_thread;
  return of_this_thread;
}

}  // namespace

std::byte* allocate_block(std::size_t bytes) {
  if (!kKeeps) return fresh(bytes);
  // Classes without regard to `ended`: whoever frees the block computes the same size.
  const SizeClass size = size_class(bytes);
  return ended ? fresh(size.bytes) : cache().take(size);
}

void free_block(std::byte* block, std::size_t bytes) noexcept {
  if (kKeeps && !ended) {
    cache().give(block, size_class(bytes));
  } else {
    destroy(block);
  }
}

std::size_t cached_block_bytes() { return ended ? 0 : cache().kept_bytes(); }

}  // namespace zeropp::quant
