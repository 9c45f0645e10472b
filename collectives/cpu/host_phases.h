#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/threads/core_wait.h"
#include "gradwire/collectives/cpu/host_memory.h"

namespace gradwire::collectives::cpu {

// The turns that operations of a group on one host are made of. One member's end.
//
// All members count turns alike. In a turn a member writes what it brings into its slot, publishes it by the
// turn's number in its line, and reads the slots of others that have published theirs. Turns alternate
// between two slots: a member begins turn t when all have begun t-1, so nobody reads any more what t-2 left
// in the slot.
//
// A member that waits spins, then yields, then sleeps on a futex; asleep it checks now and then whether the
// deadline has come or a member is gone. Not thread-safe but for fail().
class HostPhases {
 public:
  // `names`: what errors call the members; empty: 0, 1, ...
  HostPhases(HostMemory& memory, int rank, int size, std::vector<int> names);

  // Begins the next turn: all members have begun the one before. The calls below are about this turn.
  absl::Status begin(absl::Time deadline);
  // This member has written what it brings.
  void publish();
  // The member has published.
  absl::Status wait_published(int member, absl::Time deadline);
  absl::Status wait_all_published(absl::Time deadline);

  // The member's line and slot; this member's slot in the turn after this one.
  HostMemory::Line& line(int member) const { return memory_.line(member, turn_ & 1); }
  char* slot(int member) const { return memory_.slot(member, turn_ & 1); }
  char* next_slot() const { return memory_.slot(rank_, (turn_ + 1) & 1); }

  // Breaks the group, for every member. From any thread.
  absl::Status fail(absl::Status status);
  std::string name_of(int member) const;

 private:
  // Whether the member has begun this turn, or the next but one after it: the turn is one of the last two.
  bool has_begun(int member, uint64_t turn) const {
    return memory_.line(member, turn & 1).sequence.load(std::memory_order_acquire) >= turn;
  }
  absl::Status wait(int member, uint64_t turn, absl::Time deadline);
  absl::Status wait_asleep(int member, uint64_t turn, absl::Time deadline);
  // Whether a member that has not begun the turn was on the core that this thread runs on when it began its
  // last one.
  bool core_is_wanted(uint64_t turn) const;
  void wake_sleepers();
  // Why the group is broken, as its breaker found it; OK while it is not.
  absl::Status broken() const;

  HostMemory& memory_;
  const int rank_;
  const int size_;
  const std::vector<int> names_;
  CoreSharing sharing_;
  uint64_t turn_ = 0;
  // Where this member ran when it began its last turn, as the others know it.
  int core_ = -1;
  // The newest turn that each member is known to have begun.
  std::vector<uint64_t> known_;
};

}  // namespace gradwire::collectives::cpu
