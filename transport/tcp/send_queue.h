#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "transport/message.h"

namespace gradwire::transport {

// A message as it goes into the stream: the frame's start, the header and the buffers, none of them copied
// together.
class OutgoingMessage {
 public:
  explicit OutgoingMessage(Message message);

 private:
  friend class SendQueue;

  // The piece at `index` (the frame's start, the header, the buffers), from `offset` on.
  iovec piece(std::size_t index, std::size_t offset) const;
  std::size_t piece_size(std::size_t index) const;
  std::size_t piece_count() const { return 2 + message_.buffers.size(); }

  std::string frame_start_;
  Message message_;
  // How many bytes at the front of each buffer had left when it was captured; the copy does not have them.
  // Empty while nothing is captured.
  std::vector<std::size_t> captured_from_;
};

// The messages of one connection that have not left yet, and how much of the first has. Bookkeeping alone: it
// neither writes nor copies nor waits. Not thread-safe. What it hands out of itself is to be destroyed
// without a lock held, since buffers belong to users.
class SendQueue {
 public:
  // A part of a borrowed buffer that has not left: `buffer` from `offset` on.
  struct BorrowedPart {
    std::size_t index;
    std::size_t offset;
    Buffer buffer;
  };

  // Tickets count up from 1.
  uint64_t push(OutgoingMessage message);

  bool empty() const { return messages_.empty(); }
  // Of the first message that has not left completely, or of the next to come.
  uint64_t front_ticket() const { return front_ticket_; }

  // The next pieces to write, at most `max`.
  int gather(iovec* pieces, int max) const;

  // The first `bytes` of what gather() gave were written. Moves the messages that have now left to `left`.
  void advance(std::size_t bytes, std::vector<OutgoingMessage>& left);

  // What a capture of the message has to copy; nothing when it has left.
  std::vector<BorrowedPart> borrowed_parts(uint64_t ticket) const;
  // Puts copies in their place: each part's `buffer` now holds what was `offset` and beyond. Gives back the
  // buffers that are not needed any more in the same vector. Does nothing if the message has left.
  void replace_borrowed(uint64_t ticket, std::vector<BorrowedPart>& parts);

  // Empties the queue.
  std::deque<OutgoingMessage> clear();

 private:
  uint64_t front_ticket_ = 1;
  std::deque<OutgoingMessage> messages_;
  // How far the first message has left.
  std::size_t piece_ = 0;
  std::size_t offset_ = 0;
};

}  // namespace gradwire::transport
