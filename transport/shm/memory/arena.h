#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/numeric/int128.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/memory/ring.h"

namespace gradwire::transport {

// The memory in which large buffers travel: the sender copies into a block, the receiver uses the block
// itself and marks it free when it is done. It consists of segments that the sender makes, each with blocks
// of one size:
//
//   offset                     bytes        what
//   0                          blocks * b   the blocks; b is a multiple of 64
//   blocks * b                 blocks * 64  for each block, on a line of its own, 4 bytes: 0 while it belongs
//                                           to the receiver, who puts 1 when it gives it back
//
// A message names a block by segment (the high 32 bits) and index (the low 32 bits). A receiver checks both,
// and the length, against what was announced. A sender believes the mark of a block only while that block is
// out.
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

// Whether a segment may look like that.
inline bool is_segment(const SegmentPacket& packet) {
  return packet.blocks >= 1 && packet.blocks <= (uint64_t{1} << 20) && packet.block_bytes >= kLineBytes &&
         packet.block_bytes % kLineBytes == 0 && packet.block_bytes <= kMaxSegmentBytes &&
         packet.bytes <= kMaxSegmentBytes &&
         packet.bytes >= static_cast<absl::uint128>(packet.blocks) * (packet.block_bytes + kLineBytes);
}

inline char* block_mark(char* segment, std::size_t block_bytes, std::size_t blocks, std::size_t index) {
  return segment + blocks * block_bytes + index * kLineBytes;
}

// Huge pages pay where much memory is used together.
inline bool wants_huge_pages(std::size_t block_bytes) { return block_bytes >= std::size_t{1} << 20; }

}  // namespace gradwire::transport
