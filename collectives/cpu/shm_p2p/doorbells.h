#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"

namespace gradwire::collectives::cpu {

// The state that a member shows to all others, besides its rings.
struct Doorbell {
  enum State : uint32_t {
    kIdle,    // Nothing is pending. Signal only if its ring is full.
    kPolled,  // A thread polls the rings. Do not signal.
    kArmed,   // Threads sleep. Signal after every write.
  };
  alignas(128) std::atomic<uint32_t> state;
  // 1 + the core on which the rank wrote last; 0 before.
  std::atomic<int32_t> core;
  // The futex on which the rank's threads sleep: number of signals so far.
  alignas(128) std::atomic<uint32_t> signals;
};

// The doorbells of all members of a group, in their shared memory. A doorbell wakes the sleeping threads of
// one rank. Other ranks signal it after they have written something, if the rank's state asks for that.
//
// signal*() and wait() are thread-safe. The other functions must not run concurrently.
class Doorbells {
 public:
  Doorbells(const HostMemory& memory, int rank, int size) : memory_(memory), rank_(rank), size_(size) {}

  void signal(int rank) const;
  void signal_all() const;
  // Signal the rank if its state asks for it: signal_if_armed() after something was written for it,
  // signal_if_not_polled() after its ring was found full.
  void signal_if_armed(int rank) const;
  void signal_if_not_polled(int rank) const;
  // Number of signals of this rank so far. Read it before checking for work, and pass it to wait().
  uint32_t signal_count() const { return doorbell(rank_).signals.load(); }
  void wait(uint32_t count, absl::Duration at_most) const;

  // Publishes for which events the others must signal this rank. Returns true if the caller must poll once
  // more, because others may have written without a signal.
  bool publish(Doorbell::State state);
  // Publishes the core on which this rank writes.
  void publish_core();
  // Whether the rank `src`, for which this thread waits, last ran on this thread's core. kAnyRank: whether
  // any other rank did.
  bool core_is_wanted(int src) const;

 private:
  Doorbell& doorbell(int rank) const { return *reinterpret_cast<Doorbell*>(memory_.slot(rank, 0)); }

  const HostMemory& memory_;
  const int rank_;
  const int size_;
  Doorbell::State state_ = Doorbell::kIdle;
  int core_ = -1;
};

}  // namespace gradwire::collectives::cpu
