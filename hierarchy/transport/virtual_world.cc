#include "hierarchy/transport/virtual_world.h"

#include <fmt/format.h>

#include <utility>

#include "quant/error.h"

namespace zeropp::hierarchy::virtual_ranks {

World::World(const Topology& topology, const VirtualOptions& options, int workers)
    : topology_(topology),
      options_(options),
      channels_(topology.ranks()),
      activities_(static_cast<std::size_t>(workers)) {}

void World::fail(int rank, const std::string& where, std::optional<RankError> error) {
  const std::lock_guard lock(failure_mutex_);
  if (!failed_.load(std::memory_order_relaxed)) {
    failure_.rank = rank;
    failure_.where = where;
    failure_.error = std::move(error);
    failed_.store(true, std::memory_order_seq_cst);
  } else if (failure_.rank == rank && !failure_.error) {
    failure_.error = std::move(error);
  }
}

void World::fail_timeout() {
  const std::lock_guard lock(failure_mutex_);
  failed_.store(true, std::memory_order_seq_cst);
}

void World::throw_failed(const std::string& where) const {
  const std::lock_guard lock(failure_mutex_);
  const std::string cause =
      failure_.rank < 0 ? std::string("no progress in time")
                        : fmt::format("rank {} failed {}", failure_.rank, failure_.where);
  throw TransportError(fmt::format("[virtual] {} ended: {}", where, cause));
}

void World::keep(quant::Buffer memory) {
  memory.untrack();
  const std::lock_guard lock(failure_mutex_);
  kept_.push_back(std::move(memory));
}

void World::report_wait(int rank, std::string text) {
  const std::lock_guard lock(failure_mutex_);
  if (failure_.rank < 0) failure_.waits.emplace_back(rank, std::move(text));
}

void World::arrive_at_barrier() {
  if (barrier_arrivals_.fetch_add(1, std::memory_order_acq_rel) + 1 < activities_.size())
    return;
  barrier_arrivals_.store(0, std::memory_order_relaxed);
  barrier_generation_.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace zeropp::hierarchy::virtual_ranks
