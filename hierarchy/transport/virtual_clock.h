#pragma once

#include <cstdint>

namespace zeropp::hierarchy::virtual_ranks {

/// A cheap clock: at a thousand ranks its cost would be a good part of a barrier's. The
/// processor's time stamp counter where it ticks evenly, else the system's steady clock.
class Clock {
 public:
  using Ticks = std::int64_t;
  static const Clock& instance();  ///< Calibrated once a process, which takes a millisecond.

  Ticks now() const;
  double seconds(Ticks t) const { return static_cast<double>(t) * seconds_per_tick_; }

 private:
  Clock();
  bool counter_ = false;
  double seconds_per_tick_ = 1e-9;
};

}  // namespace zeropp::hierarchy::virtual_ranks
