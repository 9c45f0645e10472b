#include "gradwire/transport/shm/outgoing.h"

#include <algorithm>
#include <utility>

namespace gradwire::transport {
namespace {

// Number of records of a long message that are written before other threads may take the lock.
constexpr int kRecordsPerTurn = 8;

}  // namespace

BufferEntry Outgoing::entry(std::size_t buffer) const {
  const std::size_t from = captured_from_.empty() ? 0 : captured_from_[buffer];
  const uint64_t size = from + message_.buffers[buffer].size();
  return {size | blocks_[buffer].location << BufferEntry::kLocationShift, blocks_[buffer].name};
}

std::size_t Outgoing::stream_bytes() const {
  std::size_t bytes = list_bytes() + message_.header.size();
  for (std::size_t i = 0; i < message_.buffers.size(); ++i) bytes += piece_size(2 + i);
  return bytes;
}

// The bytes of a piece in the stream. A buffer in the arena has none: its entry in the list refers to it.
std::size_t Outgoing::piece_size(std::size_t piece) const {
  if (piece == 0) return list_bytes();
  if (piece == 1) return message_.header.size();
  const std::size_t buffer = piece - 2;
  if (in_arena(buffer)) return 0;
  return (captured_from_.empty() ? 0 : captured_from_[buffer]) + message_.buffers[buffer].size();
}

// Pieces: 0 is the list of buffers, 1 the header, 2 + i the buffer i.
void Outgoing::append_piece(RingProducer& ring, std::size_t piece, std::size_t offset,
                            std::size_t bytes) const {
  if (piece == 1) {
    ring.append(message_.header.data() + offset, bytes);
    return;
  }
  if (piece >= 2) {
    // A captured buffer holds only the bytes from `from` on. The ones before were written already.
    const std::size_t from = captured_from_.empty() ? 0 : captured_from_[piece - 2];
    ring.append(static_cast<const char*>(message_.buffers[piece - 2].data()) + (offset - from), bytes);
    return;
  }
  // The list is not stored: its entries are created while they are written.
  while (bytes > 0) {
    const BufferEntry next = entry(offset / sizeof(BufferEntry));
    const std::size_t within = offset % sizeof(BufferEntry);
    const std::size_t part = std::min(bytes, sizeof(BufferEntry) - within);
    ring.append(reinterpret_cast<const char*>(&next) + within, part);
    offset += part;
    bytes -= part;
  }
}

void Outgoing::append(RingProducer& ring, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t size = piece_size(piece_);
    const std::size_t part = std::min(bytes, size - offset_);
    if (part > 0) append_piece(ring, piece_, offset_, part);
    offset_ += part;
    bytes -= part;
    if (offset_ == size) {
      ++piece_;
      offset_ = 0;
    }
  }
}

Outgoing::Progress Outgoing::write(RingProducer& ring, bool& published, std::size_t& needed) {
  // A message that fits into one record is written as a kMessage. A longer one begins with a kStart, and its
  // stream follows in kData records. A call may stop at any record; the next call continues there.
  if (stage_ == Stage::kUnwritten) {
    left_ = stream_bytes();
    const bool in_one_record =
        left_ <= ring.max_payload() && message_.buffers.size() <= RecordWord::kMaxBuffers;
    const uint64_t start[2] = {message_.header.size(), message_.buffers.size()};
    needed = in_one_record ? left_ : sizeof(start);
    if (!ring.has_room(needed)) return Progress::kNoRoom;
    published = true;
    ring.begin(needed);
    if (in_one_record) {
      append(ring, left_);
      ring.publish(RecordKind::kMessage, static_cast<uint32_t>(message_.buffers.size()));
      stage_ = Stage::kWritten;
      return Progress::kDone;
    }
    ring.append(start, sizeof(start));
    ring.publish(RecordKind::kStart, 0);
    stage_ = Stage::kStreaming;
  }
  for (int records = 0; left_ > 0; ++records) {
    if (records == kRecordsPerTurn) return Progress::kMore;
    // Wait for the room of a worthwhile record, but then use all the room there is.
    needed = std::min(left_, ring.min_data_payload());
    if (!ring.has_room(needed)) return Progress::kNoRoom;
    const std::size_t bytes = std::min(left_, ring.room());
    ring.begin(bytes);
    append(ring, bytes);
    ring.publish(RecordKind::kData, 0);
    published = true;
    left_ -= bytes;
  }
  stage_ = Stage::kWritten;
  return Progress::kDone;
}

// Returns the owner of the bytes, so that the caller decides where it is destroyed: not under a lock,
// because it belongs to a user.
std::shared_ptr<void> Outgoing::set_block(std::size_t buffer, Block block) {
  blocks_[buffer] = block;
  std::shared_ptr<void> owner = message_.buffers[buffer].owner();
  message_.buffers[buffer] = Buffer(nullptr, message_.buffers[buffer].size(), nullptr);
  return owner;
}

std::vector<Outgoing::BorrowedPart> Outgoing::borrowed_parts() const {
  std::vector<BorrowedPart> parts;
  for (std::size_t i = 0; i < message_.buffers.size(); ++i) {
    const Buffer& buffer = message_.buffers[i];
    const std::size_t piece = i + 2;
    if (buffer.sharing() != Buffer::Sharing::kBorrowed || buffer.size() == 0 || in_arena(i) || piece < piece_)
      continue;
    parts.push_back({i, piece == piece_ ? offset_ : 0, buffer});
  }
  return parts;
}

void Outgoing::replace_borrowed(std::vector<BorrowedPart>& parts) {
  if (captured_from_.empty()) captured_from_.resize(message_.buffers.size(), 0);
  for (BorrowedPart& part : parts) {
    Buffer& buffer = message_.buffers[part.index];
    // The buffer was copied to a block meanwhile, or two threads capture the same message.
    if (buffer.sharing() != Buffer::Sharing::kBorrowed || in_arena(part.index)) continue;
    std::swap(buffer, part.buffer);
    captured_from_[part.index] = part.offset;
  }
}

void OutgoingQueue::push(uint64_t ticket, Outgoing&& message) {
  message.queued_bytes_ = message.message_.byte_size();
  messages_.push_back(std::move(message));
  if (messages_.size() == 1) front_ticket_ = ticket;
  bytes_ += messages_.back().queued_bytes_;
}

std::size_t OutgoingQueue::bytes() const {
  return bytes_ - (messages_.empty() ? 0 : messages_.front().written_bytes());
}

Outgoing OutgoingQueue::pop() {
  Outgoing message = std::move(messages_.front());
  // Tickets increase by one with each message, also with those that never were in the queue. A message
  // enters the queue only while it is not empty or when it becomes the first one, so the tickets in it are
  // consecutive.
  messages_.pop_front();
  ++front_ticket_;
  bytes_ -= message.queued_bytes_;
  return message;
}

void OutgoingQueue::clear(std::deque<Outgoing>& to) {
  bytes_ = 0;
  messages_.swap(to);
}

Outgoing* OutgoingQueue::find(uint64_t ticket) {
  if (messages_.empty() || ticket < front_ticket_ || ticket - front_ticket_ >= messages_.size())
    return nullptr;
  return &messages_[ticket - front_ticket_];
}

}  // namespace gradwire::transport
