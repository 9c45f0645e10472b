#include "transport/tcp/send_queue.h"

#include <cstring>
#include <random>

#include "gtest/gtest.h"
#include "transport/tcp/frame.h"

namespace gradwire::transport {
namespace {

Buffer buffer_of(const std::string& text, Buffer::Sharing sharing = Buffer::Sharing::kOwned) {
  auto owner = std::make_shared<std::string>(text);
  return Buffer(owner->data(), owner->size(), owner, sharing);
}

Message sample_message(int i, Buffer::Sharing sharing = Buffer::Sharing::kOwned) {
  Message message;
  message.header = "header " + std::to_string(i);
  message.buffers = {buffer_of(std::string(100 + i, 'a'), sharing), Buffer(), buffer_of("tail"),
                     buffer_of(std::string(i, 'z'), sharing)};
  return message;
}

std::string encode(const Message& message) {
  std::string bytes = encode_frame_start(message) + message.header;
  for (const Buffer& buffer : message.buffers)
    bytes.append(static_cast<const char*>(buffer.data()), buffer.size());
  return bytes;
}

// Writes up to `limit` bytes as a socket would.
std::string write_some(SendQueue& queue, std::size_t limit, int max_pieces,
                       std::vector<OutgoingMessage>& left) {
  std::vector<iovec> pieces(max_pieces);
  int count = queue.gather(pieces.data(), max_pieces);
  std::string written;
  for (int i = 0; i < count && written.size() < limit; ++i) {
    EXPECT_GT(pieces[i].iov_len, 0);
    written.append(static_cast<const char*>(pieces[i].iov_base),
                   std::min(pieces[i].iov_len, limit - written.size()));
  }
  queue.advance(written.size(), left);
  return written;
}

void capture(SendQueue& queue, uint64_t ticket) {
  auto parts = queue.borrowed_parts(ticket);
  for (SendQueue::BorrowedPart& part : parts) {
    part.buffer = buffer_of(std::string(static_cast<const char*>(part.buffer.data()) + part.offset,
                                        part.buffer.size() - part.offset));
  }
  queue.replace_borrowed(ticket, parts);
}

TEST(SendQueue, PartialWritesGiveTheWholeStream) {
  for (std::size_t limit : {1, 5, 24, 33, 1'000}) {
    for (int max_pieces : {1, 2, 7, 64}) {
      SendQueue queue;
      std::string expected, written;
      for (int i = 0; i < 10; ++i) {
        expected += encode(sample_message(i));
        EXPECT_EQ(queue.push(OutgoingMessage(sample_message(i))), i + 1);
      }
      std::vector<OutgoingMessage> left;
      while (!queue.empty()) written += write_some(queue, limit, max_pieces, left);
      EXPECT_TRUE(written == expected);
      EXPECT_EQ(left.size(), 10);
      EXPECT_EQ(queue.front_ticket(), 11);
    }
  }
}

TEST(SendQueue, MessagesLeaveWithTheirLastByte) {
  SendQueue queue;
  Message message = sample_message(3);
  std::size_t size = encode(message).size();
  std::weak_ptr<void> owner = message.buffers[0].owner();
  queue.push(OutgoingMessage(std::move(message)));
  std::vector<OutgoingMessage> left;
  queue.advance(size - 1, left);
  EXPECT_TRUE(left.empty());
  EXPECT_FALSE(queue.empty());
  queue.advance(1, left);
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(owner.expired());
  left.clear();
  EXPECT_TRUE(owner.expired());
}

// Captures at every point of the stream, then spoils the borrowed memory: the stream is as if nothing had
// happened.
TEST(SendQueue, CapturesAtAnyPointKeepTheStream) {
  std::string expected;
  for (int i = 0; i < 3; ++i) expected += encode(sample_message(i));
  for (std::size_t point = 0; point < expected.size(); ++point) {
    SendQueue queue;
    std::vector<Buffer> borrowed;
    for (int i = 0; i < 3; ++i) {
      Message message = sample_message(i, Buffer::Sharing::kBorrowed);
      borrowed.insert(borrowed.end(), {message.buffers[0], message.buffers[3]});
      queue.push(OutgoingMessage(std::move(message)));
    }
    std::vector<OutgoingMessage> left;
    std::string written;
    while (written.size() < point) written += write_some(queue, point - written.size(), 64, left);
    for (uint64_t ticket = 1; ticket <= 3; ++ticket) {
      capture(queue, ticket);
      capture(queue, ticket);
    }
    for (Buffer& buffer : borrowed) std::memset(buffer.data(), '!', buffer.size());
    while (!queue.empty()) written += write_some(queue, 50, 3, left);
    ASSERT_TRUE(written == expected) << point;
  }
}

// The copy is made while other bytes leave, and put in place after that.
TEST(SendQueue, WhatLeavesDuringACaptureIsNotSentAgain) {
  Message message;
  message.buffers = {buffer_of(std::string(1'000, 'b'), Buffer::Sharing::kBorrowed)};
  std::string expected = encode(message);
  SendQueue queue;
  uint64_t ticket = queue.push(OutgoingMessage(std::move(message)));
  std::vector<OutgoingMessage> left;
  std::string written = write_some(queue, 300, 64, left);
  auto parts = queue.borrowed_parts(ticket);
  ASSERT_EQ(parts.size(), 1);
  std::string copy(static_cast<const char*>(parts[0].buffer.data()) + parts[0].offset,
                   parts[0].buffer.size() - parts[0].offset);
  written += write_some(queue, 400, 64, left);
  parts[0].buffer = buffer_of(copy);
  queue.replace_borrowed(ticket, parts);
  while (!queue.empty()) written += write_some(queue, 77, 64, left);
  EXPECT_TRUE(written == expected);
}

TEST(SendQueue, CapturesOfWhatIsNotThereDoNothing) {
  SendQueue queue;
  EXPECT_TRUE(queue.borrowed_parts(0).empty());
  EXPECT_TRUE(queue.borrowed_parts(1).empty());
  queue.push(OutgoingMessage(sample_message(1, Buffer::Sharing::kBorrowed)));
  EXPECT_EQ(queue.borrowed_parts(1).size(), 2);
  EXPECT_TRUE(queue.borrowed_parts(2).empty());
  auto parts = queue.borrowed_parts(1);
  EXPECT_EQ(queue.clear().size(), 1);
  EXPECT_TRUE(queue.empty());
  queue.replace_borrowed(1, parts);
  EXPECT_EQ(queue.push(OutgoingMessage(Message())), 2);
}

TEST(SendQueue, OwnedBuffersAreNotCaptured) {
  SendQueue queue;
  queue.push(OutgoingMessage(sample_message(5)));
  EXPECT_TRUE(queue.borrowed_parts(1).empty());
}

}  // namespace
}  // namespace gradwire::transport
