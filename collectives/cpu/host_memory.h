#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/store.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::collectives::cpu {

// What processes must have in common to share memory: the running system, the network and process namespaces,
// the user. Empty when the system does not say; then nothing is shared.
std::string host_key();

// Memory that the ranks of one group on one host share, and what each says of itself there. Every process may
// write anything there: what is read is compared or bounded, never trusted.
class HostMemory {
 public:
  // Payload that lies beside a sequence number, in the cache line that is fetched to see it.
  static constexpr std::size_t kInlineBytes = 56;
  static constexpr std::size_t kMaxReason = 240;

  // The operation that a member began last, of those with an even or with an odd number.
  struct alignas(128) Line {
    // First, so that elements of every size are aligned in them.
    char bytes[kInlineBytes];
    std::atomic<uint64_t> sequence;
  };
  // What a member says of itself.
  struct alignas(128) Member {
    std::atomic<uint32_t> left;
    std::atomic<int32_t> process;
    // Where it ran when it began its last turn; -1 before.
    std::atomic<int32_t> core;
  };
  struct Header {
    char token[16];
    // Threads that sleep until `bell` changes.
    alignas(128) std::atomic<uint32_t> sleepers;
    std::atomic<uint32_t> bell;
    // 0, or 1 + the member that broke the group; its reason is complete once `reason_size` is not 0.
    alignas(128) std::atomic<uint32_t> broken_by;
    std::atomic<uint32_t> reason_size;
    std::atomic<int32_t> reason_code;
    char reason[kMaxReason];
  };

  struct Options {
    int index = 0;
    int size = 1;
    // Of the group alone; index 0 makes the memory, the others find it here.
    std::shared_ptr<store::Store> store;
    // What each member has for data in each of two turns.
    std::size_t slot_bytes = std::size_t{1} << 20;
    absl::Duration timeout = absl::Seconds(60);
  };
  // Returns when all members have joined. A member that cannot make or reach the memory says so to the
  // others, which then fail with Unavailable without waiting for it. Unavailable or InvalidArgument when the
  // memory cannot be made or reached; the store's errors, of which DeadlineExceeded means that a member said
  // nothing in time.
  static absl::StatusOr<std::unique_ptr<HostMemory>> join(const Options& options);
  // The others see that this member has left.
  ~HostMemory();

  int index() const { return index_; }
  int size() const { return size_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  Header& header() const { return *reinterpret_cast<Header*>(memory_.data()); }
  Member& member(int index) const { return members_[index]; }
  Line& line(int index, int turn) const { return lines_[2 * index + turn]; }
  char* slot(int index, int turn) const {
    return slots_ + (2 * static_cast<std::size_t>(index) + turn) * slot_bytes_;
  }
  // Whether the member has left, or its process has ended: what it wrote before that is there.
  bool gone(int index) const;
  // Wakes the threads that sleep until `bell` changes.
  void ring();

 private:
  HostMemory(const Options& options, transport::SharedMemory memory);
  static absl::StatusOr<std::unique_ptr<HostMemory>> map(const Options& options, Descriptor& descriptor);
  static absl::StatusOr<std::unique_ptr<HostMemory>> make(const Options& options, Descriptor& descriptor);
  static absl::StatusOr<std::unique_ptr<HostMemory>> reach(const Options& options);
  absl::Status meet(const Options& options);

  const int index_;
  const int size_;
  const std::size_t slot_bytes_;
  transport::SharedMemory memory_;
  // Where these begin in it.
  Member* const members_;
  Line* const lines_;
  char* const slots_;
  // Readable once the process has ended; none for this process.
  std::vector<Descriptor> watched_;
};

}  // namespace gradwire::collectives::cpu
