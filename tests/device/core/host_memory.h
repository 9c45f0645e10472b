#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/tests/device/core/shared.h"
#include "gradwire/tests/device/core/stream.h"

namespace gradwire::lag {

// Pinned host memory: memory from which a device may copy while the host goes on. As with CUDA's
// CachingHostAllocator, a freed block is used again when the streams that record() named have passed the
// point at which the block was freed. At that time its bytes become poison. Thread-safe.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();

  // Never fails; `bytes` is not zero. The memory is aligned to 64 bytes and filled with poison.
  void* allocate(size_t bytes);
  // `data` is what allocate() returned.
  void free(void* data);
  // `stream` uses the block that contains the address. Returns false if no block contains it.
  bool record(const void* address, Stream& stream);
  // Whether an allocated block contains the address.
  bool contains(const void* address) const;
  // Returns the cached blocks to the system.
  void release_cached();

  struct Counts {
    int64_t blocks = 0;
    int64_t bytes = 0;
    // Freed blocks that wait for streams.
    int64_t pending = 0;
    // Since the start: all allocations, and those that used a block again.
    int64_t allocations = 0;
    int64_t reuses = 0;
  };
  Counts counts();

 private:
  struct Block {
    std::byte* data = nullptr;
    size_t size = 0;
    size_t capacity = 0;
    std::set<Stream*> used_by;
    std::vector<Point> pending;
  };

  Block* find_locked(const void* address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void collect_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void cache_locked(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<const std::byte*, std::unique_ptr<Block>> blocks_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, Block*> used_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, std::vector<Block*>> cached_ ABSL_GUARDED_BY(mutex_);
  std::vector<Block*> pending_ ABSL_GUARDED_BY(mutex_);
  Counts totals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::lag
