#include "gradwire/collectives/cpu/shm_p2p/doorbells.h"

#include <sched.h>

#include "gradwire/base/threads/futex.h"
#include "gradwire/collectives/cpu/p2p/frame.h"

namespace gradwire::collectives::cpu {

void Doorbells::ring(int rank) const {
  Doorbell& its = bell(rank);
  its.bell.fetch_add(1);
  futex_wake_all(its.bell);
}

void Doorbells::ring_all() const {
  for (int rank = 0; rank < size_; ++rank) ring(rank);
}

// Between what was written and the reading of the other rank's state there is a fence.
// ShmEndpoint::arm_locked() has the other half: a rank publishes that it is to be rung for, and then polls
// once more.
void Doorbells::ring_if_armed(int rank) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (bell(rank).state.load(std::memory_order_relaxed) == Doorbell::kArmed) ring(rank);
}

void Doorbells::ring_if_not_polled(int rank) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (bell(rank).state.load(std::memory_order_relaxed) != Doorbell::kPolled) ring(rank);
}

void Doorbells::wait(uint32_t count, absl::Duration at_most) const {
  futex_wait(bell(rank_).bell, count, at_most);
}

bool Doorbells::publish(Doorbell::State state) {
  if (state == state_) return false;
  const bool was_armed = state_ == Doorbell::kArmed;
  state_ = state;
  bell(rank_).state.store(state, std::memory_order_relaxed);
  // Who is attended looks for itself.
  if (state == Doorbell::kPolled || (was_armed && state == Doorbell::kIdle)) return false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

void Doorbells::publish_core() {
  // A look at the thread's own memory where the system has restartable sequences.
  const int core = ::sched_getcpu();
  if (core == core_) return;
  core_ = core;
  bell(rank_).core.store(core + 1, std::memory_order_relaxed);
}

bool Doorbells::core_is_wanted(int src) const {
  const int core = ::sched_getcpu() + 1;
  const auto is_here = [&](int rank) {
    return rank != rank_ && bell(rank).core.load(std::memory_order_relaxed) == core;
  };
  if (src != kAnyRank) return is_here(src);
  for (int rank = 0; rank < size_; ++rank) {
    if (is_here(rank)) return true;
  }
  return false;
}

}  // namespace gradwire::collectives::cpu
