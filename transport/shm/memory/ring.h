#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gradwire::transport {

// How one direction of a connection lies in shared memory, which its sender (the producer) has made. Integers
// are those of the machine, which both ends share.
//
//   offset  bytes  what                                                                   written by
//   0       8      tail: how many lines the consumer has released since the beginning     consumer
//   128     4      armed: 1 when nobody polls the ring: the producer puts 0 and rings     consumer, producer
//   256     4      room: 1 when the producer waits for it: the consumer puts 0 and rings  producer, consumer
//   512     n      lines of 64 bytes; n is a power of two
//
// A record begins with a line and takes as many as it needs, from the last line on to the first if need be:
//
//   offset  bytes  what
//   0       1      kind, never 0
//   1       3      buffers, in a kMessage
//   4       4      p, the length of what follows; at most a quarter of the ring
//   8       p
//
// The first 8 bytes are written last and in one piece. So long as they are 0 there is no record, and that is
// all a consumer looks at; before it releases lines it puts 0 into the first 8 bytes of each, so that nothing
// old looks like a record. "To ring" is to send a doorbell (control_socket.h). Each end stores its own word,
// puts a full fence behind it, and then looks at the other's.
//
// kMessage: one message in one record.
//   16 buffers   for each buffer: its length in the low 56 bits of the first 8 bytes; in the high 8 bits 0 if
//                it follows here, 1 if it lies in a block of the arena (arena.h), named by the second 8 bytes
//   ...          the header: the rest of the record
//   ...          the buffers that follow here, without gaps
// kStart: a message that takes several records: 8 bytes length of the header, 8 bytes number of buffers. Its
//   bytes come in the order above in the kData records that follow, which no other record interrupts.
inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kTailOffset = 0;
inline constexpr std::size_t kArmedOffset = 128;
inline constexpr std::size_t kRoomOffset = 256;
inline constexpr std::size_t kLinesOffset = 512;
inline constexpr std::size_t kMinRingBytes = std::size_t{4} << 10;
inline constexpr std::size_t kMaxRingBytes = std::size_t{16} << 20;

enum class RecordKind : uint8_t { kMessage = 1, kStart = 2, kData = 3 };

// The first 8 bytes of a record.
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

// One buffer in the list of a message.
struct BufferEntry {
  uint64_t size_and_place = 0;
  uint64_t block = 0;

  static constexpr int kPlaceShift = 56;
  static constexpr uint64_t kFollows = 0;
  static constexpr uint64_t kInArena = 1;
  uint64_t size() const { return size_and_place & ((uint64_t{1} << kPlaceShift) - 1); }
  uint64_t place() const { return size_and_place >> kPlaceShift; }
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

// A word that the other process may change at any time.
template <class T>
std::atomic_ref<T> shared_word(char* at) {
  static_assert(std::atomic_ref<T>::is_always_lock_free);
  return std::atomic_ref<T>(*reinterpret_cast<T*>(at));
}

// Orders a store to one word before a load of another. ThreadSanitizer knows no fences; it sees the two
// processes' mappings as different memory anyway.
inline void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

}  // namespace gradwire::transport
