#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/shm/memory/ring_producer.h"

namespace gradwire::transport {

// A message on its way into a ring. Not thread-safe.
class Outgoing {
 public:
  explicit Outgoing(Message message) : message_(std::move(message)), blocks_(message_.buffers.size(), 0) {}

  const Message& message() const { return message_; }
  // The buffer lies in this block of the arena now. Returns what held its memory, which is not read any more.
  std::shared_ptr<void> set_block(std::size_t buffer, uint64_t name);
  bool in_arena(std::size_t buffer) const { return blocks_[buffer] != 0; }

  // What is to be copied through the ring: list, header and the buffers that are in no block.
  std::size_t stream_bytes() const;

  enum class Progress { kDone, kMore, kNoRoom };
  // Writes records; `published` says whether there were any. kMore: this was much for one turn. kNoRoom: go
  // on when the ring has room for a record of `needed` bytes.
  Progress write(RingProducer& ring, bool& published, std::size_t& needed);

  // Somebody has tried to put its buffers into the arena, or it is too late for that.
  bool prepared() const { return prepared_ || stage_ != Stage::kUnwritten; }
  void set_prepared(bool yes) { prepared_ = yes; }

  // A part of a borrowed buffer that has not been copied: `buffer` from `offset` on.
  struct BorrowedPart {
    std::size_t index;
    std::size_t offset;
    Buffer buffer;
  };
  std::vector<BorrowedPart> borrowed_parts() const;
  // Puts copies in their place: each part's `buffer` now holds what was `offset` and beyond. Gives back the
  // buffers that are not needed any more in the same vector.
  void replace_borrowed(std::vector<BorrowedPart>& parts);

 private:
  enum class Stage { kUnwritten, kStreaming, kWritten };

  struct Piece {
    const char* data;
    std::size_t size;
  };
  std::size_t list_bytes() const { return message_.buffers.size() * sizeof(BufferEntry); }
  BufferEntry entry(std::size_t buffer) const;
  // Appends the next `bytes` of the stream to the record that has begun.
  void append(RingProducer& ring, std::size_t bytes);
  std::size_t piece_count() const { return 2 + message_.buffers.size(); }
  std::size_t piece_size(std::size_t piece) const;
  void append_piece(RingProducer& ring, std::size_t piece, std::size_t offset, std::size_t bytes) const;

  Message message_;
  // Of each buffer; 0: none.
  absl::InlinedVector<uint64_t, 4> blocks_;
  // How many bytes at the front of each buffer had been copied when it was captured; the capture does not
  // have them.
  std::vector<std::size_t> captured_from_;

  // When it was queued.
  friend class OutgoingQueue;
  std::size_t queued_bytes_ = 0;

  bool prepared_ = false;
  Stage stage_ = Stage::kUnwritten;
  std::size_t left_ = 0;
  // Where the stream goes on: the list, the header, the buffers.
  std::size_t piece_ = 0;
  std::size_t offset_ = 0;
};

// The messages of one connection that wait for room, in order. Tickets count up. Not thread-safe.
class OutgoingQueue {
 public:
  bool empty() const { return messages_.empty(); }
  Outgoing& front() { return messages_.front(); }
  // `ticket`: one more than the last that is queued, if there is one.
  void push(uint64_t ticket, Outgoing message);
  Outgoing pop();
  // Of all messages, as they were when they were queued.
  std::size_t bytes() const { return bytes_; }
  // nullptr when it is not queued.
  Outgoing* find(uint64_t ticket);
  std::deque<Outgoing> clear();

 private:
  uint64_t front_ticket_ = 0;
  std::size_t bytes_ = 0;
  std::deque<Outgoing> messages_;
};

}  // namespace gradwire::transport
