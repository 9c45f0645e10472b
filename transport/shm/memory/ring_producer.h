#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/transport/shm/memory/ring.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// The writing end of a ring (ring.h). It does not trust the values that it reads there. Not thread-safe.
//
//   if (producer.has_room(n)) {
//     producer.begin(n);
//     producer.append(data, part); ...          // n bytes in total
//     producer.publish(RecordKind::kData, 0);
//     if (producer.take_armed()) ...            // ring
//   }
class RingProducer {
 public:
  // REQUIRES: `memory` is new, and its size is ring_memory_bytes(ring_bytes).
  RingProducer(SharedMemory memory, std::size_t ring_bytes);

  // Maximum payload of a record.
  std::size_t max_payload() const { return max_payload_; }
  // Whether a record with `payload` bytes fits now. REQUIRES: payload <= max_payload().
  bool has_room(std::size_t payload);
  // Minimum payload of a record that carries a part of a long message: shorter records cost as much.
  std::size_t min_data_payload() const { return max_payload_ / 4; }
  // Maximum payload that fits now, as far as known. REQUIRES: has_room() has returned true.
  std::size_t room() const;

  // Begins a record with `payload` bytes. REQUIRES: has_room(payload).
  void begin(std::size_t payload);
  void append(const void* data, std::size_t bytes);
  // Publishes the record to the consumer. REQUIRES: as many bytes have been appended as begin() announced.
  void publish(RecordKind kind, uint32_t buffers);

  // Call after publish(). Returns whether the consumer must be rung; it resets the request.
  bool take_armed();

  // Asks the consumer to ring when it has made room. Call has_room() again afterwards.
  void ask_for_room();

  // Whether the consumer has written an invalid tail.
  bool broken() const { return broken_; }

 private:
  char* base() const { return memory_.data(); }
  char* line(uint64_t index) const { return base() + kLinesOffset + (index & line_mask_) * kLineBytes; }
  std::size_t free_lines() const { return line_count_ - (head_ - tail_); }

  SharedMemory memory_;
  uint64_t line_count_;
  uint64_t line_mask_;
  std::size_t max_payload_;
  // Number of lines written and, as far as known, released in total.
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  bool broken_ = false;

  // The record that is being written. Its first line is assembled here: a polling consumer would fetch the
  // line from this core's cache between two stores to it.
  std::size_t length_ = 0;
  std::size_t written_ = 0;
  alignas(kLineBytes) char first_[kLineBytes];
};

}  // namespace gradwire::transport
