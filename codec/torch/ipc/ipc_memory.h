#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/device/device_transfer.h"

namespace gradwire::rpc {

// Allocations of other processes that were opened here. Each is opened once, stays open for later transfers,
// and is closed when no stream uses it any more: after its process is lost, when too many are open, or at the
// end. Thread-safe.
class OpenedMemories {
 public:
  // Beyond the first number those that are not in use are closed. Beyond the second none is opened.
  static constexpr std::size_t kMaxUnused = 128;
  static constexpr std::size_t kMaxOpen = 1024;

  struct Allocation {
    std::unique_ptr<device::OpenedMemory> memory;
    uint64_t size = 0;
    // The streams that may still read it. Guarded by the lock of the owner.
    std::vector<StreamFencePtr> uses;
  };

  ~OpenedMemories() { close(); }

  // `handle` and `size` are untrusted. While the result is held, the allocation is not closed. Errors:
  // ResourceExhausted, InvalidArgument if the allocation was opened with another size, or those of the
  // driver.
  absl::StatusOr<std::shared_ptr<Allocation>> open(uint64_t worker, c10::Device device,
                                                   const std::string& handle, uint64_t size);
  // Streams that pass `fence` do not read the allocations any more.
  void used(const std::vector<std::shared_ptr<Allocation>>& allocations, const StreamFencePtr& fence);

  void forget(uint64_t worker);
  void close();
  // Closes what is not in use any more, of lost workers and of agents of this process that have ended.
  // Returns the number of those that stay open.
  std::size_t sweep();

 private:
  using Key = std::tuple<uint64_t, c10::DeviceIndex, std::string>;
  // In the order of their last use; the newest is the first.
  using Entries = std::list<std::pair<Key, std::shared_ptr<Allocation>>>;

  // Moves entries that are not in use to `closed` until at most `keep` are left.
  void evict_locked(std::size_t keep, Entries& closed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  HashMap<Key, Entries::iterator> index_ ABSL_GUARDED_BY(mutex_);
  // Entries of lost workers that may still be in use.
  std::vector<std::shared_ptr<Allocation>> closing_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
