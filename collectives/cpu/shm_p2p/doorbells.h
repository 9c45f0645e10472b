#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/collectives/cpu/host_memory.h"

namespace gradwire::collectives::cpu {

// What all members see of one, beside the rings that it writes.
struct Doorbell {
  enum State : uint32_t {
    kIdle,    // Ring when a ring is full.
    kPolled,  // Somebody polls.
    kArmed,   // Ring for whatever you write.
  };
  alignas(128) std::atomic<uint32_t> state;
  // Where the rank ran when it wrote last, and 1; 0 before.
  std::atomic<int32_t> core;
  // What threads sleep on.
  alignas(128) std::atomic<uint32_t> bell;
};

// The bells of all members of a group, in the memory that they share. A rank's threads sleep on its bell;
// others ring it when they have written something and the rank's state asks for that.
//
// ring*() and wait() are thread-safe; the others are for one thread at a time.
class Doorbells {
 public:
  Doorbells(const HostMemory& memory, int rank, int size) : memory_(memory), rank_(rank), size_(size) {}

  void ring(int rank) const;
  void ring_all() const;
  // After something was written for the rank; after its ring was found full.
  void ring_if_armed(int rank) const;
  void ring_if_not_polled(int rank) const;
  // How often this rank's bell has rung, to sleep until it rings again.
  uint32_t count() const { return bell(rank_).bell.load(); }
  void wait(uint32_t count, absl::Duration at_most) const;

  // Says to the others what they must ring for. Whether it is other news than before.
  bool publish(Doorbell::State state);
  // Says on which core this rank writes.
  void publish_core();
  // Whether a rank that is waited for last ran where this thread does; kAnyRank: one of all.
  bool core_is_wanted(int src) const;

 private:
  Doorbell& bell(int rank) const { return *reinterpret_cast<Doorbell*>(memory_.slot(rank, 0)); }

  const HostMemory& memory_;
  const int rank_;
  const int size_;
  Doorbell::State state_ = Doorbell::kIdle;
  int core_ = -1;
};

}  // namespace gradwire::collectives::cpu
