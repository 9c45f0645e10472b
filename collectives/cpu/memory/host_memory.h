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
#include "gradwire/base/mutex.h"
#include "gradwire/store/interface/store.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::collectives::cpu {

// Returns a string that is equal for processes that can share memory: it names the running system, the
// network and process namespaces, and the user. Empty if the system does not provide them; then no memory is
// shared.
std::string host_key();

// Memory shared by the ranks of one group on one host, with the state that each rank publishes there. Every
// process may write anything there: values are compared or bounded when they are read, never trusted.
class HostMemory {
 public:
  // Payload that fits beside a sequence number, in the cache line that is fetched to read the number.
  static constexpr std::size_t kInlineBytes = 56;
  static constexpr std::size_t kMaxReason = 240;

  // The number and the short payload of a member's newest phase. Each member has two lines, for even and for
  // odd phases.
  struct alignas(128) Line {
    // The first member, so that elements of every size are aligned.
    char bytes[kInlineBytes];
    std::atomic<uint64_t> sequence;
  };
  // The state that a member publishes.
  struct alignas(128) Member {
    std::atomic<uint32_t> left;
    std::atomic<int32_t> process;
    // Core on which it published last; -1 before the first phase.
    std::atomic<int32_t> core;
  };
  struct Header {
    char token[16];
    // Number of threads that sleep until `signals` changes.
    alignas(128) std::atomic<uint32_t> sleepers;
    std::atomic<uint32_t> signals;
    // 0, or 1 + the member that broke the group. Its reason is complete once `reason_size` is not 0.
    alignas(128) std::atomic<uint32_t> broken_by;
    std::atomic<uint32_t> reason_size;
    std::atomic<int32_t> reason_code;
    char reason[kMaxReason];
  };

  struct Options {
    int index = 0;
    int size = 1;
    // A store of this group only. Member 0 creates the memory, and the others find it here.
    std::shared_ptr<store::Store> store;
    // Bytes of each of a member's two slots for data.
    std::size_t slot_bytes = std::size_t{1} << 20;
    absl::Duration timeout = absl::Seconds(60);
  };
  // Returns when all members have joined. A member that cannot create or open the memory reports that in the
  // store; the other members then fail with Unavailable without waiting for it. Returns Unavailable or
  // InvalidArgument if the memory cannot be created or opened, and the errors of the store. DeadlineExceeded
  // means that a member did not report in time.
  static absl::StatusOr<std::unique_ptr<HostMemory>> join(const Options& options);
  // Informs the other members that this one has left. Does nothing in a forked child, which does not have the
  // memory.
  ~HostMemory();

  int index() const { return index_; }
  int size() const { return size_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  Header& header() const { return *reinterpret_cast<Header*>(memory_.data()); }
  Member& member(int index) const { return members_[index]; }
  Line& line(int index, int phase) const { return lines_[2 * index + phase]; }
  char* slot(int index, int phase) const {
    return slots_ + (2 * static_cast<std::size_t>(index) + phase) * slot_bytes_;
  }
  // Whether the member has left or its process has ended. Everything it wrote before is visible.
  bool gone(int index) const;
  // Wakes the threads that sleep until `signals` changes.
  void signal();

 private:
  HostMemory(const Options& options, transport::SharedMemory memory);
  static absl::StatusOr<std::unique_ptr<HostMemory>> map(const Options& options, Descriptor& descriptor);
  static absl::StatusOr<std::unique_ptr<HostMemory>> make(const Options& options, Descriptor& descriptor);
  static absl::StatusOr<std::unique_ptr<HostMemory>> reach(const Options& options);
  absl::Status meet(const Options& options);

  const int index_;
  const int size_;
  const std::size_t slot_bytes_;
  const ProcessMark mark_;
  transport::SharedMemory memory_;
  // Where the arrays begin in `memory_`.
  Member* const members_;
  Line* const lines_;
  char* const slots_;
  // A pidfd for each member, readable once its process has ended; not valid for members of this process.
  std::vector<Descriptor> watched_;
};

}  // namespace gradwire::collectives::cpu
