// The queue of one socket. A message passes through it in these steps:
// 1. push() copies a small message behind the bytes of the previous one, or queues a large one by
//    reference.
// 2. gather() lists the next pieces. From then on they stay in place, because another thread writes them
//    without a lock: an entry whose `gathered` is set does not grow.
// 3. advance() moves the position by the written bytes and hands out the completely sent messages.
//
// A capture may replace a borrowed buffer between steps 2 and 3. Positions always count the bytes of the
// whole original buffer, even if the copy only holds the end of it.

#include "gradwire/transport/tcp/send/send_queue.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace gradwire::transport {
namespace {

// Maximum number of copied bytes in one piece, because growing a piece copies its bytes again.
constexpr std::size_t kMaxCopied = std::size_t{32} << 10;
// Large enough to disable the small-string optimisation, so that the bytes stay in place when the string is
// moved.
constexpr std::size_t kFirstCapacity = 256;
// Sent entries are removed when there are this many of them, and at least as many as unsent ones.
constexpr std::size_t kMaxSentEntries = 64;

void append(std::string& out, const Buffer& buffer) {
  if (buffer.size() > 0) out.append(static_cast<const char*>(buffer.data()), buffer.size());
}

Buffer first_share(const Buffer& buffer, int stripes) {
  return Buffer(buffer.data(), stripe_share(buffer.size(), stripes, 0).size, buffer.owner(),
                buffer.sharing());
}

}  // namespace

std::size_t SendQueue::Entry::piece_size(std::size_t index) const {
  if (index == 0) return copied.size();
  if (index == 1) return message.header.size();
  // The size of the original buffer: the part that was sent before the capture, and the captured rest.
  const std::size_t from = captured_from.empty() ? 0 : captured_from[index - 2];
  return from + message.buffers[index - 2].size();
}

iovec SendQueue::Entry::piece(std::size_t index, std::size_t offset) const {
  const char* data;
  std::size_t from = 0;
  if (index == 0) {
    data = copied.data();
  } else if (index == 1) {
    data = message.header.data();
  } else {
    data = static_cast<const char*>(message.buffers[index - 2].data());
    if (!captured_from.empty()) from = captured_from[index - 2];
  }
  // `offset` is at least `from`: these bytes had been sent when the buffer was captured.
  return {const_cast<char*>(data) + (offset - from), piece_size(index) - offset};
}

SendQueue::Entry& SendQueue::entry_to_append_to(std::size_t bytes) {
  if (!empty()) {
    Entry& last = entries_.back();
    if (!last.gathered && !last.has_message && last.copied.size() + bytes <= kMaxCopied) return last;
  }
  Entry& added = entries_.emplace_back();
  added.ticket = last_ticket_;
  added.copied.swap(spare_);
  added.copied.reserve(std::max(bytes, kFirstCapacity));
  return added;
}

// Copies the start of the frame, and the message if it is small, behind the bytes of the previous messages,
// so that many small messages leave in one piece. A larger message is queued by reference and ends its entry.
void SendQueue::push(uint64_t ticket, Message& message, const Striping& striping) {
  const std::size_t frame = kFramePrefixBytes + 8 * message.buffers.size();
  const std::size_t whole = frame + message.byte_size();
  Entry& entry = entry_to_append_to(std::min(whole, kCopiedBytes));
  entry.ticket = last_ticket_ = ticket;
  const std::size_t before = entry.copied.size();
  // If no memory is left: the peer must not get a part of the frame.
  absl::Cleanup undo = [&entry, before] { entry.copied.resize(before); };
  append_frame_start(entry.copied, message, striping);
  const bool copy_header = message.header.size() <= kCopiedBytes;
  if (copy_header) entry.copied += message.header;
  if (whole <= kCopiedBytes) {
    for (const Buffer& buffer : message.buffers) append(entry.copied, buffer);
  }
  std::move(undo).Cancel();
  if (whole <= kCopiedBytes) {
    bytes_ += entry.copied.size() - before;
    return;
  }
  entry.has_message = true;
  entry.message = std::move(message);
  if (copy_header) entry.message.header.clear();
  for (Buffer& buffer : entry.message.buffers) {
    if (striping.covers(buffer.size())) buffer = first_share(buffer, striping.stripes);
  }
  // byte_size() no longer counts what was copied, nor the shares of the other sockets.
  bytes_ += entry.copied.size() - before + entry.message.byte_size();
}

void SendQueue::push_shares(uint64_t ticket, std::vector<Buffer> shares) {
  Entry& entry = entries_.emplace_back();
  entry.ticket = last_ticket_ = ticket;
  entry.has_message = true;
  entry.message.buffers = std::move(shares);
  bytes_ += entry.message.byte_size();
}

void SendQueue::take_back_shares(uint64_t ticket) noexcept {
  if (empty() || entries_.back().ticket != ticket || !entries_.back().has_message) return;
  bytes_ -= entries_.back().message.byte_size();
  entries_.pop_back();
}

void SendQueue::push_bytes(absl::string_view bytes) {
  Entry& entry = entry_to_append_to(bytes.size());
  entry.copied.append(bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

int SendQueue::gather(iovec* pieces, int max) {
  int count = 0;
  std::size_t offset = offset_;
  std::size_t index = piece_;
  for (std::size_t i = front_; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    entry.gathered = true;
    for (; index < entry.piece_count(); ++index) {
      if (count == max) return count;
      iovec piece = entry.piece(index, offset);
      if (piece.iov_len > 0) pieces[count++] = piece;
      offset = 0;
    }
    index = 0;
  }
  return count;
}

void SendQueue::advance(std::size_t bytes, Sent& sent) {
  bytes_ -= bytes;
  while (!empty()) {
    Entry& entry = entries_[front_];
    while (piece_ < entry.piece_count()) {
      const std::size_t size = entry.piece_size(piece_);
      const std::size_t step = std::min(bytes, size - offset_);
      offset_ += step;
      bytes -= step;
      // The system call wrote only a part of the pieces.
      if (offset_ < size) return;
      ++piece_;
      offset_ = 0;
    }
    remove_front(sent);
  }
}

void SendQueue::remove_front(Sent& sent) {
  Entry& entry = entries_[front_];
  if (entry.has_message) sent.push_back(std::move(entry.message));
  // Keep the larger memory for the next entry, unless one large message has made it unusually large.
  if (entry.copied.capacity() > spare_.capacity() && entry.copied.capacity() <= 2 * kMaxCopied) {
    spare_.swap(entry.copied);
    spare_.clear();
  }
  entry = Entry();
  ++front_;
  piece_ = 0;
  if (empty()) {
    entries_.clear();
    front_ = 0;
  } else if (front_ >= kMaxSentEntries && 2 * front_ >= entries_.size()) {
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(front_));
    front_ = 0;
  }
}

std::size_t SendQueue::find(uint64_t ticket) const {
  // Tickets do not decrease from entry to entry, so a binary search finds the message.
  const auto begin = entries_.begin() + static_cast<std::ptrdiff_t>(front_);
  auto found = std::lower_bound(begin, entries_.end(), ticket,
                                [](const Entry& entry, uint64_t wanted) { return entry.ticket < wanted; });
  // Bytes that do not belong to a message have the ticket of the message before them.
  while (found != entries_.end() && found->ticket == ticket && !found->has_message) ++found;
  if (found == entries_.end() || found->ticket != ticket) return entries_.size();
  return static_cast<std::size_t>(found - entries_.begin());
}

std::vector<SendQueue::BorrowedPart> SendQueue::borrowed_parts(uint64_t ticket) const {
  std::vector<BorrowedPart> parts;
  const std::size_t at = find(ticket);
  if (at == entries_.size()) return parts;
  const std::vector<Buffer>& buffers = entries_[at].message.buffers;
  const bool first = at == front_;
  // Skip what has been sent: of the first entry, the pieces before the position and the beginning of the
  // current one.
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::size_t piece = i + 2;
    if (buffers[i].sharing() != Buffer::Sharing::kBorrowed || buffers[i].size() == 0 ||
        (first && piece < piece_))
      continue;
    parts.push_back({i, first && piece == piece_ ? offset_ : 0, buffers[i]});
  }
  return parts;
}

void SendQueue::replace_borrowed(uint64_t ticket, std::vector<BorrowedPart>& parts) {
  const std::size_t at = find(ticket);
  if (at == entries_.size()) return;
  Entry& entry = entries_[at];
  if (entry.captured_from.empty()) entry.captured_from.resize(entry.message.buffers.size(), 0);
  for (BorrowedPart& part : parts) {
    Buffer& buffer = entry.message.buffers[part.index];
    // Two threads may capture the same message: only the first copy has the bytes of the right moment.
    if (buffer.sharing() != Buffer::Sharing::kBorrowed) continue;
    std::swap(buffer, part.buffer);
    entry.captured_from[part.index] = part.offset;
  }
}

SendQueue::Unsent SendQueue::clear() {
  Unsent unsent(std::exchange(entries_, {}));
  front_ = piece_ = offset_ = bytes_ = 0;
  spare_ = std::string();
  return unsent;
}

}  // namespace gradwire::transport
