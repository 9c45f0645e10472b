#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tests/device/core/extents.h"
#include "gradwire/tests/device/core/shared.h"
#include "gradwire/tests/device/core/stream.h"

namespace gradwire::lag {

class Memory;

// A part of a device's memory that a program has allocated.
class Block {
 public:
  void* data() const { return data_; }
  // The size that was asked for.
  size_t size() const { return requested_; }
  // The size rounded up, which stays the same when the block is used again.
  size_t capacity() const { return capacity_; }
  Memory& memory() const { return *memory_; }
  // The stream on which the block was allocated.
  Stream& stream() const { return *stream_; }

 private:
  friend class Memory;

  Memory* memory_ = nullptr;
  Stream* stream_ = nullptr;
  std::byte* data_ = nullptr;
  size_t offset_ = 0;
  size_t requested_ = 0;
  // Blocks of one capacity replace each other.
  size_t capacity_ = 0;
  // Other streams that use the block.
  std::set<Stream*> used_by_;
  // The points that must be passed before the block may be used again, or given to another stream.
  std::vector<Point> pending_;
};

// The memory of one device with a caching allocator, which follows the rules of CUDA's:
//   1. A freed block is used again at once for the next allocation on its own stream. Work that other streams
//      have not finished yet does not delay this.
//   2. A block that record_stream() named other streams for is first used again when those streams have
//   passed
//      the point at which the block was freed.
//   3. Blocks of other streams are used only if the memory is full otherwise, after their streams have passed
//      the free.
// In the order of the block's stream, its bytes become poison when it is freed and when it is allocated. So a
// program that breaks a rule reads poison or another tensor's data.
//
// The bytes are in a memfd(2), so another process can map them: data() == base() + offset.
// Thread-safe. Blocks belong to the Memory; the caller gives each back with free().
class Memory {
 public:
  // Reserves addresses for `size` bytes. At most `capacity` are in use or cached at a time.
  Memory(Shared& shared, int device, size_t size, size_t capacity);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  // Fails with ResourceExhausted if the memory is full, and with the device's error. `bytes` is not zero.
  absl::StatusOr<Block*> allocate(size_t bytes, Stream& stream);
  void free(Block* block);
  // The block is used on `stream`, which must have passed the free before the block is used again.
  void record_stream(Block* block, Stream& stream);

  // The allocated block that contains the address, or null.
  Block* find(const void* address) const;
  bool contains(const void* address) const {
    return address >= base_ && address < static_cast<const void*>(base_ + size_);
  }

  // The memfd(2), its size, and where this process has mapped it.
  int fd() const { return file_.get(); }
  size_t size() const { return size_; }
  std::byte* base() const { return base_; }

  void set_capacity(size_t bytes);
  // Forgets cached blocks whose streams have passed the free.
  void release_cached();

  struct Counts {
    // Blocks that the program has, and their bytes.
    int64_t blocks = 0;
    int64_t bytes = 0;
    // Freed blocks that wait for other streams.
    int64_t pending = 0;
    // Bytes that the program has, that are cached, or that are pending.
    int64_t reserved = 0;
    int64_t capacity = 0;
    // Since the start: all allocations, and those that used a block again.
    int64_t allocations = 0;
    int64_t reuses = 0;
    int64_t out_of_memory = 0;
  };
  Counts counts();

 private:
  using Key = std::pair<Stream*, size_t>;

  static size_t rounded(size_t bytes);
  // Moves pending blocks whose streams have passed the free to the cache.
  void collect_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void cache_locked(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Block* reuse_locked(size_t capacity, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Block* carve_locked(size_t capacity, Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void release_cached_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The points that must be passed before all memory that is not in use can be used again.
  std::vector<Point> obstacles_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Shared& shared_;
  const int device_;
  const size_t size_;
  Descriptor file_;
  std::byte* base_ = nullptr;

  mutable Mutex mutex_;
  size_t capacity_ ABSL_GUARDED_BY(mutex_);
  size_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
  Extents extents_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, std::unique_ptr<Block>> blocks_ ABSL_GUARDED_BY(mutex_);
  // The blocks in use, by their offsets.
  std::map<size_t, Block*> used_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, std::vector<Block*>> cached_ ABSL_GUARDED_BY(mutex_);
  std::vector<Block*> pending_ ABSL_GUARDED_BY(mutex_);
  Counts totals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::lag
