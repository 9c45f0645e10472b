#include "transport/tcp/send_queue.h"

#include <algorithm>
#include <utility>

#include "transport/tcp/frame.h"

namespace gradwire::transport {

OutgoingMessage::OutgoingMessage(Message message)
    : frame_start_(encode_frame_start(message)), message_(std::move(message)) {}

std::size_t OutgoingMessage::piece_size(std::size_t index) const {
  if (index == 0) return frame_start_.size();
  if (index == 1) return message_.header.size();
  std::size_t from = captured_from_.empty() ? 0 : captured_from_[index - 2];
  return from + message_.buffers[index - 2].size();
}

iovec OutgoingMessage::piece(std::size_t index, std::size_t offset) const {
  const char* data;
  std::size_t from = 0;
  if (index == 0) {
    data = frame_start_.data();
  } else if (index == 1) {
    data = message_.header.data();
  } else {
    data = static_cast<const char*>(message_.buffers[index - 2].data());
    if (!captured_from_.empty()) from = captured_from_[index - 2];
  }
  return {const_cast<char*>(data) + (offset - from), piece_size(index) - offset};
}

uint64_t SendQueue::push(OutgoingMessage message) {
  messages_.push_back(std::move(message));
  return front_ticket_ + messages_.size() - 1;
}

int SendQueue::gather(iovec* pieces, int max) const {
  int count = 0;
  std::size_t offset = offset_;
  std::size_t index = piece_;
  for (const OutgoingMessage& message : messages_) {
    for (; index < message.piece_count(); ++index) {
      if (count == max) return count;
      iovec piece = message.piece(index, offset);
      if (piece.iov_len > 0) pieces[count++] = piece;
      offset = 0;
    }
    index = 0;
  }
  return count;
}

void SendQueue::advance(std::size_t bytes, std::vector<OutgoingMessage>& left) {
  while (!messages_.empty()) {
    OutgoingMessage& message = messages_.front();
    while (piece_ < message.piece_count()) {
      std::size_t size = message.piece_size(piece_);
      std::size_t step = std::min(bytes, size - offset_);
      offset_ += step;
      bytes -= step;
      if (offset_ < size) return;
      ++piece_;
      offset_ = 0;
    }
    left.push_back(std::move(message));
    messages_.pop_front();
    ++front_ticket_;
    piece_ = 0;
  }
}

std::vector<SendQueue::BorrowedPart> SendQueue::borrowed_parts(uint64_t ticket) const {
  std::vector<BorrowedPart> parts;
  if (ticket < front_ticket_ || ticket - front_ticket_ >= messages_.size()) return parts;
  const OutgoingMessage& message = messages_[ticket - front_ticket_];
  bool first = ticket == front_ticket_;
  for (std::size_t i = 0; i < message.message_.buffers.size(); ++i) {
    const Buffer& buffer = message.message_.buffers[i];
    std::size_t piece = i + 2;
    if (buffer.sharing() != Buffer::Sharing::kBorrowed || buffer.size() == 0 || (first && piece < piece_))
      continue;
    parts.push_back({i, first && piece == piece_ ? offset_ : 0, buffer});
  }
  return parts;
}

void SendQueue::replace_borrowed(uint64_t ticket, std::vector<BorrowedPart>& parts) {
  if (ticket < front_ticket_ || ticket - front_ticket_ >= messages_.size()) return;
  OutgoingMessage& message = messages_[ticket - front_ticket_];
  if (message.captured_from_.empty()) message.captured_from_.resize(message.message_.buffers.size(), 0);
  for (BorrowedPart& part : parts) {
    Buffer& buffer = message.message_.buffers[part.index];
    // Two threads may capture the same message.
    if (buffer.sharing() != Buffer::Sharing::kBorrowed) continue;
    std::swap(buffer, part.buffer);
    message.captured_from_[part.index] = part.offset;
  }
}

std::deque<OutgoingMessage> SendQueue::clear() {
  front_ticket_ += messages_.size();
  piece_ = 0;
  offset_ = 0;
  return std::exchange(messages_, {});
}

}  // namespace gradwire::transport
