#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/numeric/int128.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/memory/ring.h"

namespace gradwire::transport {

// An arena is the shared memory for large buffers. The sender copies a buffer into a block; the receiver uses
// the block itself and marks it as free when it has finished. The arena consists of segments that the sender
// creates; all blocks of a segment have the same size:
//
//   offset                     bytes        content
//   0                          blocks * b   the blocks; b is a multiple of 64
//   blocks * b                 blocks * 64  the mark of each block, 4 bytes on a separate line: 0 while the
//                                           receiver uses the block; the receiver writes 1 to release it
//
// A message refers to a block by the segment id (the high 32 bits) and the index in the segment (the low 32
// bits). The receiver checks both, and the length, against the announced segment. The sender reads the mark
// of a block only while the receiver uses the block.
//
// The receiver may also send the block back, with the bytes that it contains then: a message of the other
// direction names it. It does not mark the block. The block's sender uses it from then on, and may send it
// again.
inline constexpr std::size_t kMaxSegments = 1'024;
inline constexpr std::size_t kMaxSegmentBytes = std::size_t{1} << 42;

struct BlockName {
  uint32_t segment = 0;
  uint32_t index = 0;

  uint64_t encode() const { return uint64_t{segment} << 32 | index; }
  static BlockName decode(uint64_t name) {
    return {static_cast<uint32_t>(name >> 32), static_cast<uint32_t>(name)};
  }
};

// Whether the packet describes a valid segment.
inline bool is_segment(const SegmentPacket& packet) {
  return packet.blocks >= 1 && packet.blocks <= (uint64_t{1} << 20) && packet.block_bytes >= kLineBytes &&
         packet.block_bytes % kLineBytes == 0 && packet.block_bytes <= kMaxSegmentBytes &&
         packet.bytes <= kMaxSegmentBytes &&
         packet.bytes >= static_cast<absl::uint128>(packet.blocks) * (packet.block_bytes + kLineBytes);
}

inline std::size_t mark_offset(std::size_t block_bytes, std::size_t blocks, std::size_t index) {
  return blocks * block_bytes + index * kLineBytes;
}
inline char* block_mark(char* segment, std::size_t block_bytes, std::size_t blocks, std::size_t index) {
  return segment + mark_offset(block_bytes, blocks, index);
}

// Huge pages are worthwhile for large blocks.
inline bool wants_huge_pages(std::size_t block_bytes) { return block_bytes >= std::size_t{1} << 20; }

}  // namespace gradwire::transport
