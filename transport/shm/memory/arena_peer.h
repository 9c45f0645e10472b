#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// The receiver's side of an arena (arena.h): maps the segments of the peer. Not thread-safe, except claim().
// The returned buffers may be released on any thread and at any time, also after this object is destroyed:
// each buffer keeps the mapping of its segment. The number of mapped bytes and segments is limited, including
// segments that only such buffers keep.
class ArenaPeer {
 public:
  explicit ArenaPeer(std::size_t max_bytes);

  // Maps a segment. InvalidArgument for an invalid segment or one over the limits; Unavailable if it cannot
  // be mapped.
  absl::Status add(const SegmentPacket& packet, const Descriptor& descriptor);
  // Drops a segment. InvalidArgument for an unknown segment.
  absl::Status drop(uint32_t segment);

  bool knows(uint64_t name) const { return segments_.contains(BlockName::decode(name).segment); }
  // Returns the first `size` bytes of a block. The buffer releases the block when its last copy is destroyed.
  // InvalidArgument if there is no such block or if it is smaller than `size`.
  absl::StatusOr<Buffer> take(uint64_t name, uint64_t size) const;
  // Returns the name of the block behind a buffer from take(), if the buffer begins with it and has no other
  // owner. From now on the block belongs to the peer, and the buffer must not be used. A message must name
  // the block. nullopt for all other buffers, and for borrowed ones. Thread-safe.
  absl::optional<uint64_t> claim(const Buffer& buffer) const;

 private:
  // The number of bytes and segments that are mapped now.
  struct Total {
    std::atomic<std::size_t> bytes{0};
    std::atomic<std::size_t> segments{0};
  };
  struct Segment {
    Segment(SharedMemory mapped, const SegmentPacket& packet, std::shared_ptr<Total> counted);
    ~Segment();

    const SharedMemory memory;
    const std::size_t block_bytes;
    const std::size_t blocks;
    const std::shared_ptr<Total> total;
  };

  // The use of a block: ends when the last owner of its buffer drops it.
  struct Use {
    std::shared_ptr<Segment> segment;
    char* mark;
    uint64_t name;
    // The block is sent back: the end of the use does not mark it.
    bool sent_back = false;
    void operator()(void*) const;
  };

  const std::size_t max_bytes_;
  const std::shared_ptr<Total> total_ = std::make_shared<Total>();
  absl::flat_hash_map<uint32_t, std::shared_ptr<Segment>> segments_;
};

}  // namespace gradwire::transport
