#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "absl/types/optional.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// A block of an arena that the sender may fill.
struct ArenaBlock {
  void* data = nullptr;
  uint64_t name = 0;
};

// The sender's side of an arena (arena.h). It creates segments when blocks are needed, finds the blocks that
// the receiver has released, and frees idle segments.
//
// The states of a block are
//   free -> (take) taken: the caller fills it -> (commit) sent: the receiver uses it -> free
//   free -> (lease) leased: a buffer of the program -> (claim) sent -> free
//           leased -> free, when the last owner of the buffer drops it
//           sent -> (take_back) leased, when the receiver sends the block back
//
// The most recently used blocks of a size are used first, because their pages are warm. Thread-safe. Shared
// by the connection and the leased buffers, which may outlive the connection.
class ArenaOwner : public std::enable_shared_from_this<ArenaOwner> {
 public:
  struct Options {
    // Maximum size of all segments together.
    std::size_t max_bytes = 0;
    // mapped_bytes() is added to it, with those of other arenas; may be nullptr.
    std::shared_ptr<std::atomic<int64_t>> all_mapped_bytes;
    // Counts the arenas that have mapped memory, this one and others; may be nullptr.
    std::shared_ptr<std::atomic<int64_t>> all_arenas;
    // Size of idle segments that trim() keeps: of this arena, and of all that are counted, which have equal
    // shares.
    std::size_t max_idle_bytes = 0;
    std::size_t max_idle_bytes_of_all = std::numeric_limits<std::size_t>::max();
    // Announce a segment to the peer, or retract it. They return false if that is not possible now. Called
    // with a lock held, never after close() has returned.
    std::function<bool(const SegmentPacket&, const Descriptor&)> announce;
    std::function<bool(const DropPacket&)> retract;
  };

  explicit ArenaOwner(Options options);
  ~ArenaOwner();

  // Returns a block of at least `size` bytes; nullopt if the arena is exhausted or closed. The caller must
  // fill it and then commit() it.
  absl::optional<ArenaBlock> take(std::size_t size);
  // From now on the block belongs to the receiver: this process does not access its bytes any more. A message
  // must refer to it.
  void commit(const ArenaBlock& block);

  // Returns a block as a buffer that the program may fill; nullopt as for take().
  absl::optional<Buffer> lease(std::size_t size);
  // Returns the block of a buffer from lease() or take_back() that begins with the block and has no other
  // owner. From now on the block belongs to the receiver, and the buffer must not be used. nullopt for all
  // other buffers, and for borrowed ones.
  absl::optional<ArenaBlock> claim(const Buffer& buffer);

  // The receiver has sent a block back: returns its first `size` bytes as a leased buffer. nullopt if the
  // receiver does not use such a block, or if it is smaller than `size`.
  absl::optional<Buffer> take_back(uint64_t name, std::size_t size);

  // After so many calls of trim() in which an arena was not used, it keeps no idle memory.
  static constexpr int kTrimsUntilEmpty = 12;
  // Frees segments that have not been used since the last trim(), down to the limits of idle memory. Returns
  // whether any segments are left.
  bool trim();
  // Closes the arena: it provides no more blocks.
  void close();

  std::size_t mapped_bytes() const;

 private:
  enum class State : uint8_t { kFree, kTaken, kSent, kLeased };
  struct Block {
    State state = State::kFree;
    // Number of leases of the block. It distinguishes the end of an old lease from that of the current one.
    uint32_t lease = 0;
    // Where it is in SizeClass::sent, in state kSent.
    uint32_t sent_at = 0;
  };
  struct Segment {
    uint32_t id = 0;
    int size_class = 0;
    std::size_t block_bytes = 0;
    SharedMemory memory;
    std::vector<Block> blocks;
    std::size_t free_blocks = 0;
    // Number of blocks that are taken or leased, so that this process may access their bytes.
    std::size_t held_blocks = 0;
    bool used_lately = true;
  };
  struct BlockRef {
    Segment* segment;
    uint32_t index;
  };
  // The blocks of one size class, last in first out.
  struct SizeClass {
    std::vector<BlockRef> free;
    std::vector<BlockRef> sent;
    std::size_t cursor = 0;
    uint32_t failures = 0;  // Number of consecutive searches that found no block.
  };
  struct LeaseEnd {
    std::shared_ptr<ArenaOwner> arena;
    uint64_t name;
    uint32_t lease;
    void operator()(void*) const {
      if (arena->mark_.here()) arena->end_lease(name, lease);
    }
  };
  struct Lease {
    void* data;
    LeaseEnd end;
  };

  // Begins a lease of a block in state kLeased. buffer_over() must follow, without the lock: if there is no
  // memory for the owner of the buffer, it ends the lease.
  Lease begin_lease_locked(const BlockRef& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static Buffer buffer_over(Lease lease, std::size_t size, Buffer::Sharing sharing);
  void remove_sent_locked(SizeClass& blocks, std::size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::optional<BlockRef> take_locked(std::size_t size, State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the sent block at index `at` if the receiver has released it.
  bool reclaim_locked(SizeClass& blocks, std::size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks `count` sent blocks, in turn.
  void reclaim_some_locked(SizeClass& blocks, std::size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void reclaim_all_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool grow_locked(int size_class, std::size_t block_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool has_room_locked(std::size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool drop_locked(Segment& segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Segment* find_locked(uint64_t name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::size_t max_idle_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void set_mapped_locked(std::size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the use of a block by this process; `state` is its new state, kSent or kFree.
  void release_locked(Segment& segment, uint32_t index, State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void end_lease(uint64_t name, uint32_t lease);

  static char* data_of(const BlockRef& block) {
    return block.segment->memory.data() + block.index * block.segment->block_bytes;
  }
  static char* mark_of(const BlockRef& block) {
    return block_mark(block.segment->memory.data(), block.segment->block_bytes, block.segment->blocks.size(),
                      block.index);
  }

  const Options options_;
  const ProcessMark mark_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t next_segment_ ABSL_GUARDED_BY(mutex_) = 1;
  std::size_t mapped_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of consecutive calls of trim() before which no segment was used.
  int unused_trims_ ABSL_GUARDED_BY(mutex_) = 0;
  HashMap<uint32_t, std::unique_ptr<Segment>> segments_ ABSL_GUARDED_BY(mutex_);
  std::map<int, SizeClass> classes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
