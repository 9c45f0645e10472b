#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/collectives/cpu/host_memory.h"
#include "gradwire/collectives/cpu/span.h"

namespace gradwire::collectives::cpu {

// Collectives between ranks that share a host, through memory that they share. One member's end.
//
// Every operation is a number of turns, which all members count alike. In a turn a member writes what it brings into its
// slot, says so by the turn's number in its line, and reads the slots of others that have said so. Turns alternate
// between two slots: a member begins turn t when all have begun t-1, so nobody reads any more what t-2 left in the slot.
// Of data that is short, number and bytes are in one cache line; long data goes in pieces that fit a slot. To read from
// the others' own memory instead (process_vm_readv) was slower, at every size that was measured, than two copies by way
// of slots that stay in the caches; and many systems forbid it.
//
// Who waits looks, then yields, then sleeps on a futex; while it sleeps it looks now and then whether the deadline has
// come or a member is gone. Operations are called one at a time and in the same order by all members. Errors name members
// as "rank N", by `names`: DeadlineExceeded, Unavailable (gone), and after one of these, or abort(), Aborted for ever.
// Results have the same bits on all ranks. Not thread-safe but for abort().
class HostGroup {
 public:
  struct Options {
    HostMemory::Options memory;
    // What errors call the members; empty: 0, 1, ...
    std::vector<int> names;
    // Up to how many bytes each reduces all by itself; 0: as measured.
    std::size_t flat_bytes = 0;
  };
  static absl::StatusOr<std::unique_ptr<HostGroup>> join(Options options);

  int rank() const { return rank_; }
  int size() const { return size_; }

  absl::Status barrier(absl::Time deadline);
  absl::Status broadcast(Span data, int root, absl::Time deadline);
  // `data` of others than the root stays as it is.
  absl::Status reduce(Span data, int root, const Reducer& reducer, absl::Time deadline);
  absl::Status all_reduce(Span data, const Reducer& reducer, absl::Time deadline);
  // Lists: size() spans of one size; at the root alone for gather and scatter.
  absl::Status gather(Span data, absl::Span<const Span> outputs, int root, absl::Time deadline);
  absl::Status all_gather(Span data, absl::Span<const Span> outputs, absl::Time deadline);
  absl::Status scatter(Span data, absl::Span<const Span> inputs, int root, absl::Time deadline);
  absl::Status reduce_scatter(Span output, absl::Span<const Span> inputs, const Reducer& reducer,
                              absl::Time deadline);
  // Sizes may differ: what rank i sends to j is what j expects from i. InvalidArgument, naming both, where not.
  absl::Status all_to_all(absl::Span<const Span> outputs, absl::Span<const Span> inputs, absl::Time deadline);

  // Every operation of every member ends with Aborted. From any thread.
  void abort(const std::string& reason);

 private:
  HostGroup(Options options, std::unique_ptr<HostMemory> memory);

  // ---- Turns (host_wait.cc).

  // Begins the next turn: all members have begun the one before.
  absl::Status begin(absl::Time deadline);
  // This member has written what it brings to the turn.
  void publish();
  // The member has published the turn.
  absl::Status wait_published(int member, absl::Time deadline);
  absl::Status wait_all_published(absl::Time deadline);
  // Whether the member has begun this turn, or the next but one after it: the turn is one of the last two.
  bool has_begun(int member, uint64_t turn) const {
    return memory_->line(member, turn & 1).sequence.load(std::memory_order_acquire) >= turn;
  }
  absl::Status wait(int member, uint64_t turn, absl::Time deadline);
  absl::Status wait_long(int member, uint64_t turn, absl::Time deadline);
  absl::Status wait_asleep(int member, uint64_t turn, absl::Time deadline);
  // Whether a member that has not begun the turn was on the core that this thread runs on when it began its last one.
  bool core_is_wanted(uint64_t turn) const;
  void wake_sleepers();
  // Why the group is broken, as its breaker found it; OK while it is not.
  absl::Status broken() const;
  // Breaks the group, for every member.
  absl::Status fail(absl::Status status);
  std::string name_of(int member) const;

  HostMemory::Line& my_line() { return memory_->line(rank_, turn_ & 1); }
  char* slot_of(int member) const { return memory_->slot(member, turn_ & 1); }
  char* my_slot() const { return slot_of(rank_); }

  // ---- By the size of the data.

  absl::Status all_reduce_inline(Span data, const Reducer& reducer, absl::Time deadline);
  absl::Status all_reduce_flat(Span data, const Reducer& reducer, absl::Time deadline);
  absl::Status all_reduce_two_phase(Span data, const Reducer& reducer, absl::Time deadline);
  // Calls `piece` with offset and length of each part of `bytes` bytes that fits into `room`; once where bytes is 0.
  static absl::Status in_pieces(
      std::size_t bytes, std::size_t room,
      absl::FunctionRef<absl::Status(std::size_t offset, std::size_t length)> piece);
  // The largest of what the members bring.
  absl::StatusOr<uint64_t> largest(uint64_t mine, absl::Time deadline);

  const Options options_;
  const std::unique_ptr<HostMemory> memory_;
  const int rank_;
  const int size_;
  // More ranks than cores.
  const bool crowded_;
  // Waits in a row that found another member on this core, and how many of these are one too many.
  int shared_ = 0;
  int most_shared_ = 64;
  uint64_t turn_ = 0;
  // Where this member ran when it began its last turn, as the others know it.
  int core_ = -1;
  // The newest turn that each member is known to have begun.
  std::vector<uint64_t> known_;
};

}  // namespace gradwire::collectives::cpu
