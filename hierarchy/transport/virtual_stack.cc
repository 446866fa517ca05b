#include "hierarchy/transport/virtual_stack.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "hierarchy/transport/virtual_switch.h"
#include "quant/error.h"

namespace zeropp::hierarchy::virtual_ranks {
namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

struct Mapping {
  std::byte* bottom;
  std::size_t bytes;
};

void unmap(const Mapping& m) { munmap(m.bottom - page_bytes(), m.bytes + page_bytes()); }

Mapping map(std::size_t bytes) {
  const std::size_t guard = page_bytes();
  void* base = mmap(nullptr, bytes + guard, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (base == MAP_FAILED) {
    throw TransportError(fmt::format("[virtual] cannot map a stack of {} bytes: {}", bytes,
                                     std::strerror(errno)));
  }
  // A huge page would make 2 MiB of every stack resident.
  madvise(base, bytes + guard, MADV_NOHUGEPAGE);
  const Mapping m{static_cast<std::byte*>(base) + guard, bytes};
  if (mprotect(base, guard, PROT_NONE) != 0) {
    const int error = errno;
    unmap(m);
    throw TransportError(
        fmt::format("[virtual] cannot guard a stack: {} (each rank needs two "
                    "mappings, see vm.max_map_count)",
                    std::strerror(error)));
  }
  return m;
}

/// Stacks between runs, with the pages that they touched.
class Pool {
 public:
  ~Pool() {
    for (const Mapping& m : idle_) unmap(m);
  }
  Mapping take(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = idle_.size(); i-- > 0;) {
        if (idle_[i].bytes != bytes) continue;
        const Mapping m = idle_[i];
        idle_[i] = idle_.back();
        idle_.pop_back();
        return m;
      }
    }
    return map(bytes);
  }
  void put(const Mapping& m) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (idle_.size() < kMaxIdle) {
        idle_.push_back(m);
        return;
      }
    }
    unmap(m);
  }

 private:
  static constexpr std::size_t kMaxIdle = 64;
  std::mutex mutex_;
  std::vector<Mapping> idle_ = [] {
    std::vector<Mapping> v;
    v.reserve(kMaxIdle);
    return v;
  }();
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

Stack::Stack(std::size_t bytes) {
  const std::size_t page = page_bytes();
  const Mapping m = pool().take((bytes + page - 1) / page * page);
  bottom_ = m.bottom;
  bytes_ = m.bytes;
}

Stack::~Stack() {
  if (bottom_ == nullptr) return;
  unpoison(bottom_, bytes_);
  pool().put({bottom_, bytes_});
}

Stack::Stack(Stack&& o) noexcept
    : bottom_(std::exchange(o.bottom_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}

Stack& Stack::operator=(Stack&& o) noexcept {
  std::swap(bottom_, o.bottom_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

}  // namespace zeropp::hierarchy::virtual_ranks
