#pragma once

namespace zeropp::hierarchy::virtual_ranks {

/// What a thread does between two looks at its conditions: spins first, since peers are often a
/// microsecond away, then yields, then sleeps, since cores are shared with others.
class Idle {
 public:
  void pass();

 private:
  int passes_ = 0;
};

}  // namespace zeropp::hierarchy::virtual_ranks
