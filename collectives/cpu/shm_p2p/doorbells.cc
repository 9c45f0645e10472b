// Sleeping and waking through shared memory. A signal costs a system call, so a writer signals only if the
// reader's published state asks for it. All races are between "write, then read the state" on one side and
// "publish the state, then poll" on the other side.

#include "gradwire/collectives/cpu/shm_p2p/doorbells.h"

#include <sched.h>

#include "gradwire/base/threads/futex.h"
#include "gradwire/collectives/cpu/p2p/frame.h"

namespace gradwire::collectives::cpu {

// The number changes before the wake-up. A thread that has read the old number and is about to sleep does not
// sleep: the kernel compares the number again, atomically with going to sleep.
void Doorbells::signal(int rank) const {
  Doorbell& its = doorbell(rank);
  its.signals.fetch_add(1);
  futex_wake_all(its.signals);
}

void Doorbells::signal_all() const {
  for (int rank = 0; rank < size_; ++rank) signal(rank);
}

// The problem: no wake-up may be lost. The writer writes a record and then reads the reader's state. The
// reader publishes kArmed and then polls once more (publish() and ShmEndpoint::arm_locked()). Each side has a
// fence between its two steps, so at least one of them sees what the other has written.
void Doorbells::signal_if_armed(int rank) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (doorbell(rank).state.load(std::memory_order_relaxed) == Doorbell::kArmed) signal(rank);
}

void Doorbells::signal_if_not_polled(int rank) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (doorbell(rank).state.load(std::memory_order_relaxed) != Doorbell::kPolled) signal(rank);
}

void Doorbells::wait(uint32_t count, absl::Duration at_most) const {
  futex_wait(doorbell(rank_).signals, count, at_most);
}

bool Doorbells::publish(Doorbell::State state) {
  if (state == state_) return false;
  const bool was_armed = state_ == Doorbell::kArmed;
  state_ = state;
  // Relaxed is enough. The fence below orders this store before the poll that follows; without a fence, the
  // rank polls anyway or is signalled too often, which is harmless.
  doorbell(rank_).state.store(state, std::memory_order_relaxed);
  // No extra poll is needed while a thread polls anyway, or when an armed rank becomes idle: until now the
  // others signalled it.
  if (state == Doorbell::kPolled || (was_armed && state == Doorbell::kIdle)) return false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

void Doorbells::publish_core() {
  // This is a read of the thread's own memory on systems with restartable sequences.
  const int core = ::sched_getcpu();
  if (core == core_) return;
  core_ = core;
  doorbell(rank_).core.store(core + 1, std::memory_order_relaxed);
}

bool Doorbells::core_is_wanted(int src) const {
  const int core = ::sched_getcpu() + 1;
  const auto ran_on_core = [&](int rank) {
    return rank != rank_ && doorbell(rank).core.load(std::memory_order_relaxed) == core;
  };
  if (src != kAnyRank) return ran_on_core(src);
  for (int rank = 0; rank < size_; ++rank) {
    if (ran_on_core(rank)) return true;
  }
  return false;
}

}  // namespace gradwire::collectives::cpu
