#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// The receiver's side of an arena (arena.h): maps the segments of the peer. Not thread-safe, except claim().
// The returned buffers may be released on any thread and at any time, also after this object is destroyed:
// each buffer keeps the mapping of its segment.
//
// The number of mapped bytes and segments is limited. The account follows the protocol: a segment counts
// until the peer has dropped it and none of its blocks is in use here. The end of a use is counted before the
// peer can see it. So a peer that drops a segment after it has seen the ends of all uses finds room for
// another segment, although the thread that ended the last use may not have unmapped the memory yet.
class ArenaPeer {
 public:
  explicit ArenaPeer(std::size_t max_bytes);

  // Maps a segment. If this process has no room for the mapping, take() copies from it, and tries again to
  // map it. InvalidArgument for an invalid segment or one over the limits; ResourceExhausted, which
  // is_local_shortage() recognises, if this process has neither room nor a descriptor.
  absl::Status add(const SegmentPacket& packet, const Descriptor& descriptor);
  // Drops a segment. InvalidArgument for an unknown segment.
  absl::Status drop(uint32_t segment);

  bool knows(uint64_t name) const { return segments_.contains(BlockName::decode(name).segment); }
  // Returns the first `size` bytes of a block. The buffer releases the block when its last copy is destroyed.
  // If the segment is not mapped, the buffer is a copy in memory of `pool`, and the block is released now.
  // Errors:
  //   InvalidArgument    there is no such block, or it is smaller than `size`
  //   ResourceExhausted  no memory was left for the copy, and the bytes are lost (is_local_shortage)
  absl::StatusOr<Buffer> take(uint64_t name, uint64_t size, BufferPool& pool);
  // Returns the name of the block behind a buffer from take(), if the buffer begins with it and has no other
  // owner. From now on the block belongs to the peer, and the buffer must not be used. A message must name
  // the block. nullopt for all other buffers, and for borrowed ones. Thread-safe.
  absl::optional<uint64_t> claim(const Buffer& buffer) const;

 private:
  // The number of bytes and segments that count against the limits now.
  struct Total {
    std::atomic<std::size_t> bytes{0};
    std::atomic<std::size_t> segments{0};
  };
  struct Segment {
    Segment(const SegmentPacket& packet, std::shared_ptr<Total> counted);
    // Ends a claim on the segment. The last one takes the segment out of the total.
    void end_claim();

    const ProcessMark mark;
    // While this process has no room for the mapping, `unmapped` has the descriptor instead.
    absl::optional<SharedMemory> memory;
    Descriptor unmapped;
    const std::size_t bytes;
    const std::size_t block_bytes;
    const std::size_t blocks;
    const std::shared_ptr<Total> total;
    // Number of uses of its blocks, plus one until the peer drops the segment.
    std::atomic<std::size_t> claims{1};
  };

  // The use of a block: ends when the last owner of its buffer drops it.
  struct Use {
    std::shared_ptr<Segment> segment;
    char* mark;
    uint64_t name;
    // The block is sent back: the end of the use does not mark it.
    bool sent_back = false;
    void operator()(void*);
  };

  static absl::StatusOr<Buffer> copy(const Segment& segment, uint32_t index, uint64_t size, BufferPool& pool);

  const std::size_t max_bytes_;
  const std::shared_ptr<Total> total_ = std::make_shared<Total>();
  HashMap<uint32_t, std::shared_ptr<Segment>> segments_;
};

}  // namespace gradwire::transport
