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

bool RingConsumer::release(std::size_t payload) {
  const uint64_t end = position_ + lines_of(payload);
  for (; position_ != end; ++position_) {
    shared_word<uint64_t>(line(position_)).store(0, std::memory_order_relaxed);
  }
  // Told seldom, since the producer reads it seldom. A record takes at most a quarter of the ring, so a
  // producer that waits for room always has more to wait for than what is not told yet.
  if (position_ - released_ < line_count_ / 8) return false;
  released_ = position_;
  shared_word<uint64_t>(base() + kTailOffset).store(released_, std::memory_order_release);
  full_fence();
  auto room = shared_word<uint32_t>(base() + kRoomOffset);
  return room.load(std::memory_order_relaxed) != 0 && room.exchange(0) != 0;
}

}  // namespace gradwire::transport
