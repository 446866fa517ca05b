#pragma once

#include <cstddef>

namespace zeropp::hierarchy::virtual_ranks {

/// A fiber's stack on loan from a process-wide pool: mapped lazily, a guard page below it.
class Stack {
 public:
  Stack() = default;
  explicit Stack(std::size_t bytes);  ///< TransportError if the system refuses.
  ~Stack();
  Stack(Stack&& o) noexcept;
  Stack& operator=(Stack&& o) noexcept;

  std::byte* bottom() const { return bottom_; }
  std::size_t bytes() const { return bytes_; }  ///< Without the guard page.

 private:
  std::byte* bottom_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace zeropp::hierarchy::virtual_ranks
