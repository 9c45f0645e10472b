#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/transport/shm/memory/ring.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// The reading end of a ring (ring.h). Its accesses stay inside the ring, whatever the producer writes at any
// time. The reader must check the meaning of the bytes after it has copied them out. Not thread-safe.
//
//   while (const uint64_t word = consumer.peek()) {
//     const RecordWord record = RecordWord::decode(word);
//     if (record.length > consumer.max_payload()) ...   // malformed record
//     consumer.copy_out(0, to, record.length);
//     if (consumer.release(record.length)) ...          // ring
//   }
class RingConsumer {
 public:
  // REQUIRES: the size of `memory` is ring_memory_bytes(ring_bytes).
  RingConsumer(SharedMemory memory, std::size_t ring_bytes);

  std::size_t max_payload() const { return max_payload_; }
  uint64_t line_count() const { return line_count_; }

  // Returns the first 8 bytes of the next record; 0 if there is no record.
  uint64_t peek() const { return shared_word<uint64_t>(line(position_)).load(std::memory_order_acquire); }

  // Copies `bytes` bytes from `offset` in the payload of the next record. REQUIRES: peek() has returned the
  // record, and offset + bytes <= max_payload().
  void copy_out(std::size_t offset, void* to, std::size_t bytes) const;

  // Releases the next record, whose length is `payload`. Returns whether the producer waits for room and must
  // be rung.
  bool release(std::size_t payload);

  // Requests that the producer rings, or that it does not. After arm() execute a full fence, then call
  // peek().
  void arm() { shared_word<uint32_t>(base() + kArmedOffset).store(1, std::memory_order_relaxed); }
  void disarm() { shared_word<uint32_t>(base() + kArmedOffset).store(0, std::memory_order_relaxed); }

 private:
  char* base() const { return memory_.data(); }
  char* line(uint64_t index) const { return base() + kLinesOffset + (index & line_mask_) * kLineBytes; }

  SharedMemory memory_;
  uint64_t line_count_;
  uint64_t line_mask_;
  std::size_t max_payload_;
  // Number of lines read, and of lines released, in total.
  uint64_t position_ = 0;
  uint64_t released_ = 0;
};

}  // namespace gradwire::transport
