#pragma once

#include "hierarchy/transport/virtual_endpoint.h"
#include "hierarchy/transport/virtual_world.h"

namespace zeropp::hierarchy::virtual_ranks {

/// One rank with a thread of its own: the debug mode that TSan can look into. The mailboxes are
/// the fibers'; only waiting differs.
class ThreadRank final : public Waiter {
 public:
  ThreadRank(World& world, int rank)
      : world_(world), activity_(world.activity(rank)), endpoint_(world, rank, *this) {}

  void run(const std::function<void(Transport&)>& body);
  const Endpoint& endpoint() const { return endpoint_; }

  double wait(const Counter& word, std::uint64_t target, bool until_failure) override;
  void pause() override;
  void arrive() override { world_.arrive_at_barrier(); }

 private:
  World& world_;
  Activity& activity_;
  Endpoint endpoint_;
};

}  // namespace zeropp::hierarchy::virtual_ranks
