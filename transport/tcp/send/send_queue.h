#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/tcp/wire/frame.h"

namespace gradwire::transport {

// The queue of data that one socket still has to send. Small messages are copied together; large pieces of
// other messages are queued by reference. It only keeps the state: it neither writes nor waits. Not
// thread-safe. Destroy the messages and buffers that it returns without a lock held, since buffers belong to
// users.
class SendQueue {
 public:
  // Messages up to this size are copied completely when they are pushed: that is cheaper than sending them in
  // pieces and keeping them.
  static constexpr std::size_t kCopiedBytes = 4096;

  // Messages that have been sent. A few need no memory: the lack of it must not end a connection.
  using Sent = absl::InlinedVector<Message, 4>;

  // The unsent part of a borrowed buffer: `buffer` from `offset` on.
  struct BorrowedPart {
    std::size_t index;
    std::size_t offset;
    Buffer buffer;
  };

  // Appends a message. Tickets must increase. The message is moved from, unless it was copied. Only the first
  // share of a striped buffer is queued.
  void push(uint64_t ticket, Message& message, const Striping& striping = Striping());
  // Appends the shares, for this socket, of the buffers of the message with this ticket.
  void push_shares(uint64_t ticket, std::vector<Buffer> shares);
  // Takes them back, if they were the last thing that was appended.
  void take_back_shares(uint64_t ticket) noexcept;
  // Appends bytes that do not belong to a message.
  void push_bytes(absl::string_view bytes);

  bool empty() const { return front_ == entries_.size(); }
  std::size_t bytes() const { return bytes_; }

  // Returns the next pieces to write, at most `max`. They stay valid, also after further pushes, until
  // advance() or clear().
  int gather(iovec* pieces, int max);

  // Must be called after the first `bytes` bytes of gather() were written. Moves completely sent messages
  // that were not copied to `sent`.
  void advance(std::size_t bytes, Sent& sent);

  // Returns the parts that a capture of the message has to copy; none if it has been sent.
  std::vector<BorrowedPart> borrowed_parts(uint64_t ticket) const;
  // Replaces borrowed buffers by copies: `buffer` of each part holds the bytes from `offset` on. Returns the
  // replaced buffers in the same vector. Does nothing if the message has been sent.
  void replace_borrowed(uint64_t ticket, std::vector<BorrowedPart>& parts);

  class Unsent;
  // Empties the queue and returns what it had. Needs no memory.
  Unsent clear();

 private:
  // Copied bytes, followed by the parts of at most one message that were not copied. The pieces of an entry
  // are the copied bytes, the header (empty if it was copied), and the buffers.
  struct Entry {
    std::string copied;
    // The ticket of the last message in the entry, which is the one that was not copied.
    uint64_t ticket = 0;
    bool has_message = false;
    // A thread may be reading `copied`, so it must not grow.
    bool gathered = false;
    Message message;
    // For each buffer, the number of bytes at its front that had been sent before it was captured; the
    // captured copy does not contain them. Empty without a capture.
    std::vector<std::size_t> captured_from;

    std::size_t piece_count() const { return has_message ? 2 + message.buffers.size() : 1; }
    std::size_t piece_size(std::size_t index) const;
    // Returns the piece at `index` from `offset` on.
    iovec piece(std::size_t index, std::size_t offset) const;
  };

  Entry& entry_to_append_to(std::size_t bytes);
  void remove_front(Sent& sent);
  // Returns the index of the entry with this message, if it was not copied and has not been sent; else
  // entries_.size().
  std::size_t find(uint64_t ticket) const;

  // The entries before front_ have been sent.
  std::vector<Entry> entries_;
  std::size_t front_ = 0;
  // The position up to which the first unsent entry has been sent.
  std::size_t piece_ = 0;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  uint64_t last_ticket_ = 0;
  // Reused memory for copied bytes.
  std::string spare_;
};

// The messages of a queue that were not sent. Destroys them.
class SendQueue::Unsent {
 private:
  friend class SendQueue;
  explicit Unsent(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  std::vector<Entry> entries_;
};

}  // namespace gradwire::transport
