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
#include "gradwire/transport/shm/memory/arena_owner.h"
#include "gradwire/transport/shm/memory/arena_peer.h"
#include "gradwire/transport/shm/memory/ring_consumer.h"

namespace gradwire::transport {

// Assembles messages from the records of a ring (transport/shm/memory/ring.h). All data is copied into memory
// of this process before it is interpreted. Lengths are checked against the limits before memory is
// allocated. Blocks of the arena become buffers without a copy. Not thread-safe. Must not be used after an
// error.
//
//   while (const uint64_t word = ring.peek()) {
//     const RecordWord record = RecordWord::decode(word);
//     absl::StatusOr<MessageReader::Progress> progress = reader.read(ring, record, catch_up);
//     if (*progress == kLater) ...   // call read() with the same record again, later
//     ring.release(record.length);
//     if (*progress == kComplete) use(reader.take());
//   }
class MessageReader {
 public:
  // `pool` and `arena` must outlive the reader.
  MessageReader(const Limits& limits, BufferPool& pool, ArenaPeer& arena)
      : limits_(limits), message_limits_(limits), pool_(pool), arena_(arena) {}

  // The blocks of this arena may be sent back. It must outlive the reader. Must be called before read().
  void set_own_arena(ArenaOwner& arena) { own_arena_ = &arena; }

  // Sets a lower limit for the header and the total size of later messages. REQUIRES: !in_message().
  void set_max_message_bytes(uint64_t bytes) {
    message_limits_.max_header_bytes = std::min<uint64_t>(limits_.max_header_bytes, bytes);
    message_limits_.max_message_bytes = std::min(limits_.max_message_bytes, bytes);
  }

  enum class Progress {
    kPart,
    // The message is complete, and must be taken.
    kComplete,
    // The message needs a segment that cannot be registered yet. The record must stay in the ring, and be the
    // next one that is read.
    kLater,
  };
  // Registers the segments that have been announced. Returns false if it must go on later.
  using CatchUp = absl::FunctionRef<absl::StatusOr<bool>()>;

  // Reads the next record of `ring`; `record` is its first 8 bytes. If the record refers to a block of an
  // unknown segment, `catch_up` is called. InvalidArgument for a malformed message or one over a limit;
  // ResourceExhausted if no memory is left for the header of a message.
  absl::StatusOr<Progress> read(const RingConsumer& ring, const RecordWord& record, CatchUp catch_up);
  // Whether there was memory for the buffers of the message. If not, ResourceExhausted: their bytes were read
  // and dropped, and take() returns the header only.
  const absl::Status& lost() const { return lost_; }
  // REQUIRES: a message is complete.
  Message take();

  // A message of which the header has arrived, and some buffers have not.
  struct Arriving {
    const std::string& header;
    // The size of the message; how many of its bytes have arrived, and how many of these are in the arena.
    uint64_t bytes;
    uint64_t arrived;
    uint64_t in_arena;
  };
  // Whether there is such a message, and arriving() was not called for it.
  bool has_arriving() const { return stage_ == Stage::kBuffers && !announced_; }
  // REQUIRES: has_arriving().
  Arriving arriving();

  // Whether a message has begun but is not complete.
  bool in_message() const { return stage_ != Stage::kIdle; }
  // Drops the data of an incomplete message.
  void reset();

 private:
  enum class Stage { kIdle, kList, kHeader, kBuffers, kComplete };

  absl::Status read_record(const RingConsumer& ring, const RecordWord& record);
  absl::Status read_message(const RingConsumer& ring, const RecordWord& record);
  absl::Status read_start(const RingConsumer& ring, const RecordWord& record);
  absl::Status read_data(const RingConsumer& ring, const RecordWord& record);
  absl::Status check_sizes(uint64_t header_bytes) const;
  void read_small_buffers(const RingConsumer& ring, std::size_t offset, std::size_t bytes);
  // The bytes of the buffers are dropped from now on.
  void lose(absl::Status reason);
  // Enters the next stages after the current stage is complete.
  absl::Status next_stages();
  // Returns false if a segment is missing that `catch_up` will register later. The next call goes on there.
  absl::StatusOr<bool> resolve_blocks(CatchUp catch_up);
  absl::StatusOr<Buffer> take_back(const BufferEntry& entry);

  const Limits limits_;
  // The limits for the current message.
  Limits message_limits_;
  BufferPool& pool_;
  ArenaPeer& arena_;
  ArenaOwner* own_arena_ = nullptr;

  Stage stage_ = Stage::kIdle;
  Message message_;
  // Why the buffers are dropped. Blocks of an arena are resolved nevertheless, so that their owners get them
  // back.
  absl::Status lost_;
  std::vector<BufferEntry> list_;
  // The list is complete and has buffers in an arena, of which the first ones, by their index, are resolved.
  bool has_blocks_ = false;
  std::size_t resolved_ = 0;
  // The last call of read() has read its record, and a segment was missing.
  bool waiting_ = false;
  // arriving() was called for the message in several records.
  bool announced_ = false;
  // Sizes of a message in several records.
  uint64_t header_bytes_ = 0;
  uint64_t buffer_count_ = 0;
  // Number of bytes of the current stage that have been received: of the list, of the header, or of the
  // buffer at buffer_index_.
  std::size_t filled_ = 0;
  std::size_t buffer_index_ = 0;
};

}  // namespace gradwire::transport
