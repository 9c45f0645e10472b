#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// The receiver's side of an arena (arena.h): the other end's segments, mapped here. Not thread-safe, but the
// buffers that it hands out may be released on any thread and at any time, also after it is gone: each keeps
// its segment's mapping. Bounded in bytes and segments, those included that only such buffers still keep.
class ArenaPeer {
 public:
  explicit ArenaPeer(std::size_t max_bytes);

  // Maps a segment. InvalidArgument for what cannot be one or is over the bounds; Unavailable when it cannot
  // be mapped.
  absl::Status add(const SegmentPacket& packet, const Descriptor& descriptor);
  // InvalidArgument for a segment that there is none.
  absl::Status drop(uint32_t segment);

  bool knows(uint64_t name) const { return segments_.contains(BlockName::decode(name).segment); }
  // The first `size` bytes of a block, which the buffer gives back when its last copy goes. InvalidArgument
  // when there is no such block, or it is smaller.
  absl::StatusOr<Buffer> take(uint64_t name, uint64_t size) const;

 private:
  // What is mapped now.
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

  const std::size_t max_bytes_;
  const std::shared_ptr<Total> total_ = std::make_shared<Total>();
  absl::flat_hash_map<uint32_t, std::shared_ptr<Segment>> segments_;
};

}  // namespace gradwire::transport
