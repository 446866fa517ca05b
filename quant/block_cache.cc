#include "quant/block_cache.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
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

/// Eight sizes between powers of two, so that blocks of similar calls fit each other.
std::size_t size_class(std::size_t bytes) {
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

/// True from the end of the thread's cache on: buffers of static storage may outlive it.
thread_local bool ended = false;

class BlockCache {
 public:
  ~BlockCache() {
    shrink_to(0);
    ended = true;
  }

  std::byte* take(std::size_t size) {
    const auto found = kept_.find(size);
    if (found == kept_.end()) {
      std::byte* block = fresh(size);
      used_ += size;
      most_used_ = std::max(most_used_, used_);
      shrink_to(most_used_ - used_);
      return block;
    }
    std::byte* block = found->second;
    kept_.erase(found);
    kept_bytes_ -= size;
    used_ += size;
    most_used_ = std::max(most_used_, used_);
    return block;
  }

  void give(std::byte* block, std::size_t size) noexcept {
    used_ -= std::min(used_, size);  // It may be another thread's.
    try {
      kept_.emplace(size, block);
      kept_bytes_ += size;
    } catch (...) {
      destroy(block);
    }
    shrink_to(most_used_ - used_);
  }

  std::size_t kept_bytes() const { return kept_bytes_; }

 private:
  void shrink_to(std::size_t bytes) noexcept {
    while (kept_bytes_ > bytes) {
      const auto largest = std::prev(kept_.end());
      kept_bytes_ -= largest->first;
      destroy(largest->second);
      kept_.erase(largest);
    }
  }

  std::multimap<std::size_t, std::byte*> kept_;
  std::size_t kept_bytes_ = 0;
  std::size_t used_ = 0, most_used_ = 0;
};

BlockCache& cache() {
  thread_local BlockCache of_this_thread;
  return of_this_thread;
}

bool is_cached(std::size_t bytes) { return kKeeps && bytes >= kCachedBytes && !ended; }

}  // namespace

std::byte* allocate_block(std::size_t bytes) {
  // Classes without regard to `ended`: whoever frees the block computes the same size.
  if (bytes < kCachedBytes || !kKeeps) return fresh(bytes);
  return is_cached(bytes) ? cache().take(size_class(bytes)) : fresh(size_class(bytes));
}

void free_block(std::byte* block, std::size_t bytes) noexcept {
  if (is_cached(bytes)) {
    cache().give(block, size_class(bytes));
  } else {
    destroy(block);
  }
}

std::size_t cached_block_bytes() { return ended ? 0 : cache().kept_bytes(); }

}  // namespace zeropp::quant
