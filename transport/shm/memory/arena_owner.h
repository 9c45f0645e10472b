#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/optional.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// A block of an arena that belongs to the sender, who fills it.
struct ArenaBlock {
  void* data = nullptr;
  uint64_t name = 0;
};

// The sender's side of an arena (arena.h): makes segments when blocks are needed, finds the blocks that the
// receiver has given back, and lets go of segments that are idle.
//
// A block is free -> (take) taken: its taker fills it -> (commit) out, until the receiver has marked it
// -> free. Or free -> (lease) leased: a buffer of the program's -> (claim) out, or -> free when its last
// owner lets go.
//
// Blocks of a size that were used last are used first: their pages are warm. Thread-safe. Shared by the
// connection and the leased buffers, which may outlive it.
class ArenaOwner : public std::enable_shared_from_this<ArenaOwner> {
 public:
  struct Options {
    // Of all segments together.
    std::size_t max_bytes = 0;
    // What trim() leaves, though nobody has used it for a while.
    std::size_t max_idle_bytes = 0;
    // Tell the other end; false when it cannot be told now. Called with a lock held, never after close() has
    // returned.
    std::function<bool(const SegmentPacket&, const Descriptor&)> announce;
    std::function<bool(const DropPacket&)> retract;
  };

  explicit ArenaOwner(Options options);
  ~ArenaOwner();

  // A block of at least `size` bytes; nothing when the arena is exhausted or closed. Fill it and commit() it.
  absl::optional<ArenaBlock> take(std::size_t size);
  // It is the receiver's from now on: nobody here touches its bytes any more. A message is to name it.
  void commit(const ArenaBlock& block);

  // A block as a buffer for the program to fill; nullopt as take().
  absl::optional<Buffer> lease(std::size_t size);
  // The block of a buffer that came from lease() and that nobody else holds; it is taken from the buffer, and
  // the receiver's from now on.
  absl::optional<ArenaBlock> claim(const Buffer& buffer);

  // Lets go of segments that nobody has used since the last trim(), beyond max_idle_bytes. Whether any are
  // left.
  bool trim();
  // No more blocks.
  void close();

  std::size_t mapped_bytes() const;

 private:
  enum class State : uint8_t { kFree, kTaken, kOut, kLeased };
  struct Block {
    State state = State::kFree;
    // Counts the leases, so that the end of an old one means nothing to the block's next use.
    uint32_t lease = 0;
  };
  struct Segment {
    uint32_t id = 0;
    int size_class = 0;
    std::size_t block_bytes = 0;
    SharedMemory memory;
    std::vector<Block> blocks;
    std::size_t free_blocks = 0;
    // Taken or leased: somebody here touches their bytes.
    std::size_t held_blocks = 0;
    bool used_lately = true;
  };
  struct BlockRef {
    Segment* segment;
    uint32_t index;
  };
  // The blocks of one size. Last in, first out.
  struct SizeClass {
    std::vector<BlockRef> free;
    std::vector<BlockRef> out;
    std::size_t cursor = 0;
    uint32_t failures = 0;  // to find a block, in a row
  };
  struct LeaseEnd {
    std::shared_ptr<ArenaOwner> arena;
    uint64_t name;
    uint32_t lease;
    void operator()(void*) const { arena->end_lease(name, lease); }
  };

  absl::optional<BlockRef> take_locked(std::size_t size, State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the block at `at` of the list of those out, if the receiver has given it back.
  bool reclaim_locked(SizeClass& blocks, std::size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Looks at `count` blocks that are out, other ones each time.
  void reclaim_some_locked(SizeClass& blocks, std::size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void reclaim_all_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool grow_locked(int size_class, std::size_t block_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool has_room_locked(std::size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool drop_locked(Segment& segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Segment* find_locked(uint64_t name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A block that somebody here held is out, or free.
  void let_go_locked(Segment& segment, uint32_t index, State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void end_lease(uint64_t name, uint32_t lease);

  static char* data_of(const BlockRef& block) {
    return block.segment->memory.data() + block.index * block.segment->block_bytes;
  }
  static char* mark_of(const BlockRef& block) {
    return block_mark(block.segment->memory.data(), block.segment->block_bytes, block.segment->blocks.size(),
                      block.index);
  }

  const Options options_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t next_segment_ ABSL_GUARDED_BY(mutex_) = 1;
  std::size_t mapped_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint32_t, std::unique_ptr<Segment>> segments_ ABSL_GUARDED_BY(mutex_);
  std::map<int, SizeClass> classes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
