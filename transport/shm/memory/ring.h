#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gradwire::transport {

// The layout of a ring in shared memory. Each direction of a connection has one, which its sender (the
// producer) creates. Integers have the byte order of the machine.
//
//   offset  bytes  content                                                               written by
//   0       8      tail: number of lines that the consumer has released in total         consumer
//   128     4      armed: 1 if no thread polls the ring; the producer then sets it to 0  consumer, producer
//                  and rings
//   256     4      room: 1 if the producer waits for room; the consumer then sets it to  producer, consumer
//                  0 and rings
//   512     n      lines of 64 bytes; n is a power of two
//
// A record begins at a line and occupies as many lines as it needs; it may wrap from the last line to the
// first:
//
//   offset  bytes  content
//   0       1      kind, never 0
//   1       3      number of buffers, in a kMessage
//   4       4      p, the length of the payload; at most a quarter of the ring
//   8       p      payload
//
// The producer writes the first 8 bytes last, with one store. While they are 0, there is no record; a
// consumer polls only them. Before the consumer releases lines, it writes 0 to the first 8 bytes of each, so
// that old bytes are never taken for a record.
//
// "To ring" means to send a doorbell (control_socket.h). A doorbell must not be lost when one end goes to
// sleep while the other one writes. So each end (1) stores its own word, (2) executes a full fence, (3) reads
// the word of the other end.
//
// kMessage: one message in one record.
//   16 per buffer  The high 8 bits of the first 8 bytes are 0 if the bytes of the buffer follow in the
//                  record, 1 if they are in a block of the producer's arena (arena.h), 2 if they are in a
//                  block of the consumer's arena, which the producer sends back. The second 8 bytes identify
//                  the block. The low 56 bits are the length.
//   ...            the header: the rest of the record
//   ...            the buffers that follow in this record, without gaps
// kStart: the begin of a message in several records: 8 bytes length of the header, 8 bytes number of buffers.
//   Its bytes follow, in the order above, in kData records. No other record may come in between.
inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kTailOffset = 0;
inline constexpr std::size_t kArmedOffset = 128;
inline constexpr std::size_t kRoomOffset = 256;
inline constexpr std::size_t kLinesOffset = 512;
inline constexpr std::size_t kMinRingBytes = std::size_t{4} << 10;
inline constexpr std::size_t kMaxRingBytes = std::size_t{16} << 20;

enum class RecordKind : uint8_t { kMessage = 1, kStart = 2, kData = 3 };

// The first 8 bytes of a record, decoded.
struct RecordWord {
  uint8_t kind = 0;
  uint32_t buffers = 0;
  uint32_t length = 0;

  static constexpr uint32_t kMaxBuffers = (uint32_t{1} << 24) - 1;
  uint64_t encode() const { return uint64_t{length} << 32 | uint64_t{buffers} << 8 | kind; }
  static RecordWord decode(uint64_t word) {
    return {static_cast<uint8_t>(word), static_cast<uint32_t>(word >> 8) & kMaxBuffers,
            static_cast<uint32_t>(word >> 32)};
  }
};

// The entry of one buffer in the list of a message.
struct BufferEntry {
  uint64_t size_and_location = 0;
  uint64_t block = 0;

  static constexpr int kLocationShift = 56;
  static constexpr uint64_t kFollows = 0;
  static constexpr uint64_t kInArena = 1;
  static constexpr uint64_t kSentBack = 2;
  uint64_t size() const { return size_and_location & ((uint64_t{1} << kLocationShift) - 1); }
  uint64_t location() const { return size_and_location >> kLocationShift; }
};
static_assert(sizeof(BufferEntry) == 16);

inline constexpr std::size_t ring_memory_bytes(std::size_t ring_bytes) { return kLinesOffset + ring_bytes; }
inline constexpr std::size_t max_record_payload(std::size_t ring_bytes) {
  return ring_bytes / 4 - sizeof(uint64_t);
}
inline constexpr std::size_t lines_of(std::size_t payload_bytes) {
  return (payload_bytes + sizeof(uint64_t) + kLineBytes - 1) / kLineBytes;
}
inline constexpr bool is_ring_size(uint64_t bytes) {
  return bytes >= kMinRingBytes && bytes <= kMaxRingBytes && (bytes & (bytes - 1)) == 0;
}

// A word in shared memory that the other process may change at any time.
template <class T>
std::atomic_ref<T> shared_word(char* at) {
  static_assert(std::atomic_ref<T>::is_always_lock_free);
  return std::atomic_ref<T>(*reinterpret_cast<T*>(at));
}

// Orders a store to one word before a load of another word. ThreadSanitizer does not support fences, but it
// treats the mappings of two processes as different memory anyway.
inline void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

}  // namespace gradwire::transport
