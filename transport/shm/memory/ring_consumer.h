#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/transport/shm/memory/ring.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// The end of a ring (ring.h) that reads. Whatever the producer writes, and whenever, it stays within the
// ring; what the bytes mean is for the reader to check, after they have been copied out. Not thread-safe.
//
//   while (const uint64_t word = consumer.peek()) {
//     const RecordWord record = RecordWord::decode(word);
//     if (record.length > consumer.max_payload()) ...   // no record
//     consumer.copy_out(0, to, record.length);
//     if (consumer.release(record.length)) ...          // ring
//   }
class RingConsumer {
 public:
  // `memory` has ring_memory_bytes(ring_bytes).
  RingConsumer(SharedMemory memory, std::size_t ring_bytes);

  std::size_t max_payload() const { return max_payload_; }
  uint64_t line_count() const { return line_count_; }

  // The first 8 bytes of the next record; 0: there is none.
  uint64_t peek() const { return shared_word<uint64_t>(line(position_)).load(std::memory_order_acquire); }

  // Copies what lies `offset` bytes behind the first 8 of the next record. REQUIRES: it has been seen by
  // peek(), and offset + bytes <= max_payload().
  void copy_out(std::size_t offset, void* to, std::size_t bytes) const;

  // Done with the next record, of this length. Whether the producer wants to be rung, since it waits for
  // room.
  bool release(std::size_t payload);

  // The producer rings, or need not. Put a full fence behind arm(), and then peek().
  void arm() { shared_word<uint32_t>(base() + kArmedOffset).store(1, std::memory_order_relaxed); }
  void disarm() { shared_word<uint32_t>(base() + kArmedOffset).store(0, std::memory_order_relaxed); }

 private:
  char* base() const { return memory_.data(); }
  char* line(uint64_t index) const { return base() + kLinesOffset + (index & line_mask_) * kLineBytes; }

  SharedMemory memory_;
  uint64_t line_count_;
  uint64_t line_mask_;
  std::size_t max_payload_;
  // Lines read, and released, since the beginning.
  uint64_t position_ = 0;
  uint64_t released_ = 0;
};

}  // namespace gradwire::transport
