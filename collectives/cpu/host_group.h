#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/collectives/cpu/byte_collectives.h"
#include "gradwire/collectives/cpu/host_memory.h"
#include "gradwire/collectives/cpu/host_phases.h"
#include "gradwire/collectives/cpu/span.h"

namespace gradwire::collectives::cpu {

// Collectives between ranks that share a host, through memory that they share. One member's end.
//
// Every operation is a number of turns (HostPhases). Of data that is short, number and bytes are in one cache
// line; long data goes in pieces that fit a slot. To read from the others' own memory instead
// (process_vm_readv) was slower, at every size that was measured, than two copies by way of slots that stay
// in the caches; and many systems forbid it.
//
// Not thread-safe but for abort().
class HostGroup final : public ByteCollectives {
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

  GRADWIRE_BYTE_COLLECTIVES;

  // Every operation of every member ends with Aborted. From any thread.
  void abort(const std::string& reason) { (void)turns_.fail(absl::AbortedError(reason)); }

 private:
  HostGroup(Options options, std::unique_ptr<HostMemory> memory);

  // By the size of the data.
  absl::Status all_reduce_inline(Span data, const Reducer& reducer, absl::Time deadline);
  absl::Status all_reduce_flat(Span data, const Reducer& reducer, absl::Time deadline);
  absl::Status all_reduce_two_phase(Span data, const Reducer& reducer, absl::Time deadline);
  // Calls `piece` with offset and length of each part of `bytes` bytes that fits into `room`; once where
  // bytes is 0.
  static absl::Status in_pieces(
      std::size_t bytes, std::size_t room,
      absl::FunctionRef<absl::Status(std::size_t offset, std::size_t length)> piece);
  // The largest of what the members bring.
  absl::StatusOr<uint64_t> largest(uint64_t mine, absl::Time deadline);

  const Options options_;
  const std::unique_ptr<HostMemory> memory_;
  const int rank_;
  const int size_;
  HostPhases turns_;
};

}  // namespace gradwire::collectives::cpu
