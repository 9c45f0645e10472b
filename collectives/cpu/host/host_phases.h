#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/copy/adaptive_copy.h"
#include "gradwire/base/polling/core_wait.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"

namespace gradwire::collectives::cpu {

// One member's end of the phases of which the operations of a group on one host consist.
//
// All members execute the same phases, numbered 1, 2, ... In a phase:
// 1. A member begins, which waits until all members have published in the phase before.
// 2. It writes its data into its slot, and publishes it by storing the phase's number in its line.
// 3. It reads the slots of members that have published theirs.
// Each member has two slots, used alternately. A member that begins phase t may overwrite its slot of phase
// t-2: all members have published in t-1, so they have finished reading t-2.
//
// A waiting member spins, then yields, then sleeps on a futex. While it sleeps it checks regularly whether
// the deadline has passed or a member is gone. Not thread-safe, except fail().
class HostPhases {
 public:
  // `names`: ranks of the members in error messages. Empty: 0, 1, ...
  HostPhases(HostMemory& memory, int rank, int size, std::vector<int> names);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Begins the next phase. Waits until all members have published in the one before. The functions below
  // refer to this phase.
  absl::Status begin(absl::Time deadline);
  // Copies data of this phase to where the others find it: data(rank, data.size).
  void write(const Span& data) { copy_for_all(this->data(rank_, data.size), data.data, data.size); }
  // Copies data for all members, or for one of them, to an address in a slot of this member.
  void copy_for_all(char* to, const void* from, std::size_t bytes) { copy_.copy(to, from, bytes); }
  void copy_for(int reader, char* to, const void* from, std::size_t bytes) {
    copies_[static_cast<std::size_t>(reader)].copy(to, from, bytes);
  }
  // Publishes the data that this member has written.
  void publish();
  // Waits until the member has published.
  absl::Status wait_published(int member, absl::Time deadline);
  absl::Status wait_all_published(absl::Time deadline);

  // The member's line and slot in this phase, and this member's slot in the next phase.
  HostMemory::Line& line(int member) const { return memory_.line(member, phase_ & 1); }
  char* slot(int member) const { return memory_.slot(member, phase_ & 1); }
  // Where the member's data of this size is: in the line, with the number of the phase, or in the slot.
  char* data(int member, std::size_t bytes) const {
    return bytes <= HostMemory::kInlineBytes ? line(member).bytes : slot(member);
  }
  char* next_slot() const { return memory_.slot(rank_, (phase_ + 1) & 1); }

  // Breaks the group for every member, and returns `status`. The first reason stays. Thread-safe.
  absl::Status fail(absl::Status status);
  std::string name_of(int member) const;

 private:
  // Whether the member has published in `phase`, which must be one of the last two: an older one uses the
  // same line. Sequentially consistent, as wake_sleepers() requires; costs no more than an acquire on x86.
  bool has_published(int member, uint64_t phase) const {
    return memory_.line(member, phase & 1).sequence.load(std::memory_order_seq_cst) >= phase;
  }
  absl::Status wait(int member, uint64_t phase, absl::Time deadline);
  absl::Status wait_asleep(int member, uint64_t phase, absl::Time deadline);
  // Whether a member that has not published in `phase` last ran on the core of this thread.
  bool core_is_wanted(uint64_t phase) const;
  void wake_sleepers();
  // Why the group is broken, as the member that broke it reported; OK while it is not.
  absl::Status broken() const;

  HostMemory& memory_;
  const int rank_;
  const int size_;
  const std::vector<int> names_;
  CoreSharing sharing_;
  uint64_t phase_ = 0;
  // Core on which this member published last, as stored for the others.
  int core_ = -1;
  // Copy into this member's slots for all members, and for each of them. The method that costs the least
  // depends on the core of the reader.
  AdaptiveCopy copy_;
  std::vector<AdaptiveCopy> copies_;
  // For each member, the newest phase in which it is known to have published. Saves reading its line again.
  std::vector<uint64_t> known_published_;
};

}  // namespace gradwire::collectives::cpu
