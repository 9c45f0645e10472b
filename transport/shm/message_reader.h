#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/shm/memory/arena_peer.h"
#include "gradwire/transport/shm/memory/ring_consumer.h"

namespace gradwire::transport {

// Puts messages together from the records of a ring (transport/shm/memory/ring.h). Everything is copied into
// memory of this process before it is looked at; lengths are checked against the limits before memory is
// allocated; blocks of the arena become buffers as they are. Not thread-safe. After an error it must not be
// used again.
//
//   while (const uint64_t word = ring.peek()) {
//     const RecordWord record = RecordWord::decode(word);
//     absl::StatusOr<bool> complete = reader.read(ring, record, catch_up);
//     ring.release(record.length);
//     if (*complete) use(reader.take());
//   }
class MessageReader {
 public:
  // `pool` and `arena` outlive the reader.
  MessageReader(const Limits& limits, BufferPool& pool, const ArenaPeer& arena)
      : limits_(limits), message_limits_(limits), pool_(pool), arena_(arena) {}

  // Further bounds the header and the whole of each message that begins after this. REQUIRES: !in_message().
  void set_max_message_bytes(uint64_t bytes) {
    message_limits_.max_header_bytes = std::min<uint64_t>(limits_.max_header_bytes, bytes);
    message_limits_.max_message_bytes = std::min(limits_.max_message_bytes, bytes);
  }

  // Reads the next record of `ring`, whose first bytes are `record`; whether it completes a message, which is
  // then to be taken. `catch_up` is called when a block of an unknown segment is named, and is to learn of
  // the segments that have been announced. InvalidArgument for what is no message, or over a limit;
  // ResourceExhausted when there is no memory.
  absl::StatusOr<bool> read(const RingConsumer& ring, const RecordWord& record,
                            absl::FunctionRef<absl::Status()> catch_up);
  // REQUIRES: a message is complete.
  Message take();

  // Whether a message has begun and is not complete.
  bool in_message() const { return stage_ != Stage::kIdle; }
  // Lets go of what has come.
  void reset();

 private:
  enum class Stage { kIdle, kList, kHeader, kBuffers, kComplete };

  absl::Status read_record(const RingConsumer& ring, const RecordWord& record);
  absl::Status read_message(const RingConsumer& ring, const RecordWord& record);
  absl::Status read_start(const RingConsumer& ring, const RecordWord& record);
  absl::Status read_data(const RingConsumer& ring, const RecordWord& record);
  absl::Status check_sizes(uint64_t header_bytes) const;
  absl::Status read_small_buffers(const RingConsumer& ring, std::size_t offset, std::size_t bytes);
  // What comes after the stage that is complete.
  absl::Status next_stages();
  absl::Status resolve_blocks(absl::FunctionRef<absl::Status()> catch_up);

  const Limits limits_;
  // What is left of them for the current message.
  Limits message_limits_;
  BufferPool& pool_;
  const ArenaPeer& arena_;

  Stage stage_ = Stage::kIdle;
  Message message_;
  std::vector<BufferEntry> list_;
  // There are buffers in the arena, and the list is complete.
  bool has_blocks_ = false;
  // Of a message in several records.
  uint64_t header_bytes_ = 0;
  uint64_t buffer_count_ = 0;
  // Bytes of the list, of the header or of the buffer at buffer_index_.
  std::size_t filled_ = 0;
  std::size_t buffer_index_ = 0;
};

}  // namespace gradwire::transport
