#include "gradwire/transport/shm/memory/ring_consumer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gradwire::transport {

RingConsumer::RingConsumer(SharedMemory memory, std::size_t ring_bytes)
    : memory_(std::move(memory)),
      line_count_(ring_bytes / kLineBytes),
      line_mask_(line_count_ - 1),
      max_payload_(max_record_payload(ring_bytes)) {}

void RingConsumer::copy_out(std::size_t offset, void* to, std::size_t bytes) const {
  char* target = static_cast<char*>(to);
  const std::size_t ring_bytes = line_count_ * kLineBytes;
  std::size_t at = (position_ & line_mask_) * kLineBytes + sizeof(uint64_t) + offset;
  while (bytes > 0) {
    const std::size_t start = at & (ring_bytes - 1);
    const std::size_t part = std::min(bytes, ring_bytes - start);
    std::memcpy(target, base() + kLinesOffset + start, part);
    target += part;
    at += part;
    bytes -= part;
  }
}

// Releases lines in this order:
// 1. Write zeros, so that old bytes are never taken for the next record. Relaxed is enough: step 2
//    publishes them.
// 2. Store the tail with release. From then on the producer may write into the lines.
// 3. After a full fence, read whether the producer waits for room. The exchange makes sure that it is rung
//    once.
bool RingConsumer::release(std::size_t payload) {
  const uint64_t end = position_ + lines_of(payload);
  for (; position_ != end; ++position_) {
    shared_word<uint64_t>(line(position_)).store(0, std::memory_order_relaxed);
  }
  // Publish the tail only once per eighth of the ring, since each store costs a cache miss at the producer. A
  // record takes at most a quarter of the ring, so a producer that waits for room always waits for more lines
  // than the unpublished ones.
  if (position_ - released_ < line_count_ / 8) return false;
  released_ = position_;
  shared_word<uint64_t>(base() + kTailOffset).store(released_, std::memory_order_release);
  full_fence();
  auto room = shared_word<uint32_t>(base() + kRoomOffset);
  return room.load(std::memory_order_relaxed) != 0 && room.exchange(0) != 0;
}

}  // namespace gradwire::transport
