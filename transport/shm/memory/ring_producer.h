#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/transport/shm/memory/ring.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// The end of a ring (ring.h) that writes. It trusts nothing that it reads there. Not thread-safe.
//
//   if (producer.has_room(n)) {
//     producer.begin(n);
//     producer.append(data, part); ...          // n bytes in all
//     producer.publish(RecordKind::kData, 0);
//     if (producer.take_armed()) ...            // ring
//   }
class RingProducer {
 public:
  // `memory` is new and has ring_memory_bytes(ring_bytes).
  RingProducer(SharedMemory memory, std::size_t ring_bytes);

  // The longest record.
  std::size_t max_payload() const { return max_payload_; }
  // Whether a record of `payload` bytes fits now. REQUIRES: payload <= max_payload().
  bool has_room(std::size_t payload);
  // A record that carries a part of much is to be at least this long: a short one costs as much.
  std::size_t worthwhile_payload() const { return max_payload_ / 4; }
  // How long a record fits, as far as known. REQUIRES: has_room() of something has been true.
  std::size_t room() const;

  // REQUIRES: has_room(payload).
  void begin(std::size_t payload);
  void append(const void* data, std::size_t bytes);
  // REQUIRES: as many bytes have been appended as were announced.
  void publish(RecordKind kind, uint32_t buffers);

  // After publish(): whether the consumer wants to be rung; it is told once.
  bool take_armed();

  // Asks the consumer to ring when it has made room. Look again afterwards.
  void ask_for_room();

  // The consumer wrote what cannot be.
  bool broken() const { return broken_; }

 private:
  char* base() const { return memory_.data(); }
  char* line(uint64_t index) const { return base() + kLinesOffset + (index & line_mask_) * kLineBytes; }
  std::size_t free_lines() const { return line_count_ - (head_ - tail_); }

  SharedMemory memory_;
  uint64_t line_count_;
  uint64_t line_mask_;
  std::size_t max_payload_;
  // Lines written and, as far as known, released since the beginning.
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  bool broken_ = false;

  // The record being written. Its first line is put together here: a consumer that polls would take the line
  // away between two stores to it.
  std::size_t length_ = 0;
  std::size_t written_ = 0;
  alignas(kLineBytes) char first_[kLineBytes];
};

}  // namespace gradwire::transport
