#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/shm/memory/ring.h"
#include "gradwire/transport/shm/memory/ring_producer.h"

namespace gradwire::transport {

// A message that is being written into a ring. Not thread-safe.
class Outgoing {
 public:
  explicit Outgoing(Message message) : message_(std::move(message)), blocks_(message_.buffers.size()) {}

  const Message& message() const { return message_; }
  // A block that contains the bytes of a buffer. `location`: kInArena or kSentBack of BufferEntry.
  struct Block {
    uint64_t name = 0;
    uint64_t location = BufferEntry::kFollows;
  };
  // Records that the bytes of the buffer are in this block. Returns the owner of the buffer's memory, which
  // is not read any more.
  std::shared_ptr<void> set_block(std::size_t buffer, Block block);
  // Whether the bytes of the buffer are in a block.
  bool in_arena(std::size_t buffer) const { return blocks_[buffer].location != BufferEntry::kFollows; }

  // Number of bytes that go through the ring: the list, the header and the buffers that are not in the arena.
  std::size_t stream_bytes() const;

  enum class Progress { kDone, kMore, kNoRoom };
  // Writes records. Sets `published` if it wrote any. kMore: the message needs another call. kNoRoom:
  // continue when the ring has room for a record of `needed` bytes.
  Progress write(RingProducer& ring, bool& published, std::size_t& needed);

  // Whether a thread has tried to copy the buffers to the arena, or it is too late for that.
  bool prepared() const { return prepared_ || stage_ != Stage::kUnwritten; }
  void set_prepared(bool yes) { prepared_ = yes; }
  // Whether the ring has a part of the message.
  bool begun() const { return stage_ != Stage::kUnwritten; }

  // The part of a borrowed buffer that has not been copied: `buffer` from `offset` on.
  struct BorrowedPart {
    std::size_t index;
    std::size_t offset;
    Buffer buffer;
  };
  std::vector<BorrowedPart> borrowed_parts() const;
  // Replaces borrowed buffers by copies: `buffer` of each part holds the bytes from `offset` on. Returns the
  // replaced buffers in the same vector.
  void replace_borrowed(std::vector<BorrowedPart>& parts);

 private:
  enum class Stage { kUnwritten, kStreaming, kWritten };

  struct Piece {
    const char* data;
    std::size_t size;
  };
  std::size_t list_bytes() const { return message_.buffers.size() * sizeof(BufferEntry); }
  BufferEntry entry(std::size_t buffer) const;
  // Appends the next `bytes` of the stream to the current record.
  void append(RingProducer& ring, std::size_t bytes);
  std::size_t piece_count() const { return 2 + message_.buffers.size(); }
  std::size_t piece_size(std::size_t piece) const;
  void append_piece(RingProducer& ring, std::size_t piece, std::size_t offset, std::size_t bytes) const;

  Message message_;
  // For each buffer.
  absl::InlinedVector<Block, 4> blocks_;
  // For each buffer, the number of bytes at its front that had been copied to the ring before it was
  // captured; the captured copy does not contain them.
  std::vector<std::size_t> captured_from_;

  // Number of bytes of a queued message that are in shared memory, once the reader can see that it has begun.
  std::size_t written_bytes() const {
    return stage_ == Stage::kUnwritten ? 0 : queued_bytes_ - std::min(queued_bytes_, left_);
  }

  // The size of the message when it was queued.
  friend class OutgoingQueue;
  std::size_t queued_bytes_ = 0;

  bool prepared_ = false;
  Stage stage_ = Stage::kUnwritten;
  // Number of bytes of the stream that are not in the ring, from Stage::kStreaming on.
  std::size_t left_ = 0;
  // The position in the stream: the piece (the list, the header, then the buffers) and the offset in it.
  std::size_t piece_ = 0;
  std::size_t offset_ = 0;
};

// The queue of messages of one connection that wait for room in the ring. Tickets are consecutive. Not
// thread-safe.
class OutgoingQueue {
 public:
  bool empty() const { return messages_.empty(); }
  Outgoing& front() { return messages_.front(); }
  // `ticket` must be the successor of the last queued ticket, if the queue is not empty.
  // An exception leaves the queue as it was.
  void push(uint64_t ticket, Outgoing&& message);
  Outgoing pop();
  // Total size of all messages at the time when they were queued, without the bytes of the first one that are
  // in shared memory.
  std::size_t bytes() const;
  // Returns nullptr if the message is not queued.
  Outgoing* find(uint64_t ticket);
  // Moves all messages to `to`, which must be empty. Needs no memory.
  void clear(std::deque<Outgoing>& to);

 private:
  uint64_t front_ticket_ = 0;
  std::size_t bytes_ = 0;
  std::deque<Outgoing> messages_;
};

}  // namespace gradwire::transport
