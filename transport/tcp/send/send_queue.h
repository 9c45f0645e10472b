#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/tcp/frame.h"

namespace gradwire::transport {

// The data that one socket has still to send: the bytes of small messages, copied together, and the large
// pieces of others, as they are. Bookkeeping alone: it neither writes nor waits. Not thread-safe. Messages
// and buffers that it hands out are to be destroyed without a lock held, since buffers belong to users.
class SendQueue {
 public:
  // A message up to this size is copied whole when it is pushed: cheaper than to send it in pieces and to
  // keep it.
  static constexpr std::size_t kCopiedBytes = 4096;

  // A part of a borrowed buffer that has not left: `buffer` from `offset` on.
  struct BorrowedPart {
    std::size_t index;
    std::size_t offset;
    Buffer buffer;
  };

  // Tickets rise. The message is moved from unless it was copied. For striped buffers only the first share is
  // queued.
  void push(uint64_t ticket, Message& message, const Striping& striping = Striping());
  // The shares of the buffers of the message with this ticket that are due here.
  void push_shares(uint64_t ticket, std::vector<Buffer> shares);
  // Bytes outside of messages.
  void push_bytes(absl::string_view bytes);

  bool empty() const { return front_ == entries_.size(); }
  std::size_t bytes() const { return bytes_; }

  // The next pieces to write, at most `max`. They stay where they are, whatever is pushed, until advance() or
  // clear().
  int gather(iovec* pieces, int max);

  // The first `bytes` of what gather() gave were written. Moves what has now left, and was not copied, to
  // `left`.
  void advance(std::size_t bytes, std::vector<Message>& left);

  // The parts that a capture of the message has to copy; none when it has left.
  std::vector<BorrowedPart> borrowed_parts(uint64_t ticket) const;
  // Puts copies in their place: each part's `buffer` now holds what was `offset` and beyond. Gives back the
  // buffers that are not needed any more in the same vector. Does nothing if the message has left.
  void replace_borrowed(uint64_t ticket, std::vector<BorrowedPart>& parts);

  // Empties the queue.
  std::vector<Message> clear();

 private:
  // Copied bytes, and behind them what was not copied of one message. Its pieces: the copied bytes, the
  // header (empty if it was copied), the buffers.
  struct Entry {
    std::string copied;
    // The ticket of the last message in it, the one that was not copied.
    uint64_t ticket = 0;
    bool has_message = false;
    // Somebody may be reading `copied`: it must not grow.
    bool gathered = false;
    Message message;
    // How many bytes at the front of each buffer had left when it was captured; the copy does not have them.
    // Empty without a capture.
    std::vector<std::size_t> captured_from;

    std::size_t piece_count() const { return has_message ? 2 + message.buffers.size() : 1; }
    std::size_t piece_size(std::size_t index) const;
    // The piece at `index` from `offset` on.
    iovec piece(std::size_t index, std::size_t offset) const;
  };

  Entry& entry_to_append_to(std::size_t bytes);
  void remove_front(std::vector<Message>& left);
  // The message with this ticket, if it was not copied and has not left; else entries_.size().
  std::size_t find(uint64_t ticket) const;

  // Those before front_ have left.
  std::vector<Entry> entries_;
  std::size_t front_ = 0;
  // How far the first entry has left.
  std::size_t piece_ = 0;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  uint64_t last_ticket_ = 0;
  // Memory for the next copied bytes.
  std::string spare_;
};

}  // namespace gradwire::transport
