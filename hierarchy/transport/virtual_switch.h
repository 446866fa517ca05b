#pragma once

#include <cxxabi.h>

#include <cstddef>

// What must be told or carried along when a thread changes from one stack to another.

#if defined(__SANITIZE_ADDRESS__)
#define ZEROPP_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ZEROPP_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define ZEROPP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ZEROPP_TSAN 1
#endif
#endif

#ifdef ZEROPP_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef ZEROPP_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace zeropp::hierarchy::virtual_ranks {

/// The C++ runtime's per-thread record of exceptions being thrown and handled (the layout is
/// fixed by the Itanium ABI). Every fiber needs its own.
struct ExceptionGlobals {
  void* caught = nullptr;
  unsigned int uncaught = 0;

  static ExceptionGlobals& of_thread() {
    return *reinterpret_cast<ExceptionGlobals*>(__cxxabiv1::__cxa_get_globals());
  }
};

/// A stack as the sanitizers know it. Without them an empty shell.
class SanitizedStack {
 public:
#ifdef ZEROPP_ASAN
  void set_bounds(const void* bottom, std::size_t bytes) {
    bottom_ = bottom;
    bytes_ = bytes;
  }
  /// On the stack that is left; `last`: it never runs again.
  void leave_for(SanitizedStack& next, bool last = false) {
    __sanitizer_start_switch_fiber(last ? nullptr : &fake_, next.bottom_, next.bytes_);
  }
  /// On the stack that is entered; `from` learns its bounds, if it was a thread's own.
  void entered(SanitizedStack& from) {
    __sanitizer_finish_switch_fiber(fake_, &from.bottom_, &from.bytes_);
  }

 private:
  void* fake_ = nullptr;
  const void* bottom_ = nullptr;
  std::size_t bytes_ = 0;
#elif defined(ZEROPP_TSAN)
  void set_bounds(const void*, std::size_t) { fiber_ = __tsan_create_fiber(0); }
  void set_thread() { fiber_ = __tsan_get_current_fiber(); }
  void leave_for(SanitizedStack& next, bool = false) { __tsan_switch_to_fiber(next.fiber_, 0); }
  void entered(SanitizedStack&) {}
  void destroy() { __tsan_destroy_fiber(fiber_); }

 private:
  void* fiber_ = nullptr;
#else
  void set_bounds(const void*, std::size_t) {}
  void leave_for(SanitizedStack&, bool = false) {}
  void entered(SanitizedStack&) {}
#endif
#ifndef ZEROPP_TSAN

 public:
  void set_thread() {}
  void destroy() {}
#endif
};

/// A stack that is used again must not carry the poison of frames that are gone.
inline void unpoison([[maybe_unused]] void* bottom, [[maybe_unused]] std::size_t bytes) {
#ifdef ZEROPP_ASAN
  __asan_unpoison_memory_region(bottom, bytes);
#endif
}

}  // namespace zeropp::hierarchy::virtual_ranks
