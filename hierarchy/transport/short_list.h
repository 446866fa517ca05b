#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace zeropp::hierarchy {

/// A list whose length is known from the start, without an allocation while it is short: a ring
/// sends one message and receives one, tens of thousands of times a step. Elements stay where
/// they are.
template <class T>
class ShortList {
 public:
  explicit ShortList(std::size_t n) : n_(n), many_(n > kShort ? n : 0) {}
  ShortList(const ShortList&) = delete;
  ShortList& operator=(const ShortList&) = delete;

  std::size_t size() const { return n_; }
  T* begin() { return n_ > kShort ? many_.data() : few_.data(); }
  T* end() { return begin() + n_; }
  const T* begin() const { return n_ > kShort ? many_.data() : few_.data(); }
  const T* end() const { return begin() + n_; }
  T& operator[](std::size_t i) { return begin()[i]; }
  const T& operator[](std::size_t i) const { return begin()[i]; }

 private:
  static constexpr std::size_t kShort = 1;
  std::size_t n_;
  std::array<T, kShort> few_{};
  std::vector<T> many_;
};

}  // namespace zeropp::hierarchy
