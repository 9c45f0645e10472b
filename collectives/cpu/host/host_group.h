#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/collectives/cpu/bytes/byte_collectives.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/host/host_phases.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"

namespace gradwire::collectives::cpu {

// One member's end of the collectives between ranks of one host, through shared memory.
//
// Every operation is a sequence of phases (HostPhases). Short data is in the same cache line as the number of
// the phase. Long data is copied in pieces that fit a slot, with the method that costs the least
// (AdaptiveCopy). Reading the other ranks' own memory instead (process_vm_readv) was slower, at every size
// that was measured, than two copies through slots, and many systems forbid it.
//
// Not thread-safe, except abort().
class HostGroup final : public ByteCollectives {
 public:
  struct Options {
    HostMemory::Options memory;
    // Ranks of the members in error messages. Empty: 0, 1, ...
    std::vector<int> names;
    // Up to this size every member reduces all data itself. 0: the measured default.
    std::size_t flat_bytes = 0;
  };
  static absl::StatusOr<std::unique_ptr<HostGroup>> join(Options options);

  int rank() const { return rank_; }
  int size() const { return size_; }

  GRADWIRE_BYTE_COLLECTIVES;

  // Every operation of every member fails with Aborted. Thread-safe.
  void abort(const std::string& reason) { (void)phases_.fail(absl::AbortedError(reason)); }

 private:
  // The alignment of each part of a slot.
  static constexpr std::size_t kLineBytes = 64;
  // Size of the parts in which data is reduced.
  static constexpr std::size_t kNearBytes = std::size_t{16} << 10;

  HostGroup(Options options, std::unique_ptr<HostMemory> memory);

  // The algorithms of all_reduce, chosen by the size of the data.
  absl::Status all_reduce_inline(Span data, const Reducer& reducer, absl::Time deadline);
  absl::Status all_reduce_flat(Span data, const Reducer& reducer, absl::Time deadline);
  absl::Status all_reduce_two_phase(Span data, const Reducer& reducer, absl::Time deadline);
  // Calls `piece` with offset and length of each part of `bytes` bytes that fits into `room`; once if `bytes`
  // is 0.
  static absl::Status in_pieces(
      std::size_t bytes, std::size_t room,
      absl::FunctionRef<absl::Status(std::size_t offset, std::size_t length)> piece);
  // A slot that is divided among its readers has this much for each of them.
  std::size_t part_bytes() const { return memory_->slot_bytes() / size_ / kLineBytes * kLineBytes; }
  // Where `writer` puts a piece of `bytes` bytes for `reader`, if every reader's piece has this size.
  char* part_of(int writer, int reader, std::size_t bytes) const {
    const bool in_line = bytes * size_ <= HostMemory::kInlineBytes;
    return in_line ? phases_.line(writer).bytes + bytes * reader
                   : phases_.slot(writer) + part_bytes() * reader;
  }
  // Combines the parts of all members, ranks ascending, in steps that stay in the nearest cache. `part`: the
  // rest of a member's part from an offset on. `take` gets each piece of the sum. REQUIRES: size() > 1
  void reduce_parts(const Reducer& reducer, std::size_t bytes,
                    absl::FunctionRef<const char*(int member, std::size_t at)> part,
                    absl::FunctionRef<void(std::size_t at, const char* sum, std::size_t length)> take);

  const Options options_;
  const std::unique_ptr<HostMemory> memory_;
  const int rank_;
  const int size_;
  HostPhases phases_;
  // Where reduce_parts() makes its sums.
  alignas(kLineBytes) std::array<char, kNearBytes> near_;
};

}  // namespace gradwire::collectives::cpu
