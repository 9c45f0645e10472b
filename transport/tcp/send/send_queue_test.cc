#include "gradwire/transport/tcp/send/send_queue.h"

#include <cstring>
#include <new>

#include "gradwire/base/testing/failing_memory.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

Buffer buffer_of(const std::string& text, Buffer::Sharing sharing = Buffer::Sharing::kOwned) {
  auto owner = std::make_shared<std::string>(text);
  return Buffer(owner->data(), owner->size(), owner, sharing);
}

Message sample_message(int i, Buffer::Sharing sharing = Buffer::Sharing::kOwned) {
  Message message;
  message.header = "header " + std::to_string(i);
  // The first buffer is too large to be copied.
  message.buffers = {buffer_of(std::string(SendQueue::kCopiedBytes + i, 'a'), sharing), Buffer(),
                     buffer_of("tail"), buffer_of(std::string(i, 'z'), sharing)};
  return message;
}

std::string encode(const Message& message) {
  std::string bytes = encode_frame_start(message) + message.header;
  for (const Buffer& buffer : message.buffers)
    bytes.append(static_cast<const char*>(buffer.data()), buffer.size());
  return bytes;
}

// Writes up to `limit` bytes as a socket would.
std::string write_some(SendQueue& queue, std::size_t limit, int max_pieces, SendQueue::Sent& sent) {
  std::vector<iovec> pieces(max_pieces);
  int count = queue.gather(pieces.data(), max_pieces);
  std::string written;
  for (int i = 0; i < count && written.size() < limit; ++i) {
    EXPECT_GT(pieces[i].iov_len, 0);
    written.append(static_cast<const char*>(pieces[i].iov_base),
                   std::min(pieces[i].iov_len, limit - written.size()));
  }
  queue.advance(written.size(), sent);
  return written;
}

void push(SendQueue& queue, uint64_t ticket, Message message) { queue.push(ticket, message); }

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
        push(queue, i + 1, sample_message(i));
      }
      SendQueue::Sent sent;
      while (!queue.empty()) written += write_some(queue, limit, max_pieces, sent);
      EXPECT_TRUE(written == expected);
      EXPECT_EQ(sent.size(), 10);
      EXPECT_EQ(queue.bytes(), 0);
    }
  }
}

TEST(SendQueue, MessagesAreReturnedAfterTheirLastByte) {
  SendQueue queue;
  Message message = sample_message(3);
  std::size_t size = encode(message).size();
  std::weak_ptr<void> owner = message.buffers[0].owner();
  push(queue, 1, std::move(message));
  EXPECT_EQ(queue.bytes(), size);
  SendQueue::Sent sent;
  queue.advance(size - 1, sent);
  EXPECT_TRUE(sent.empty());
  EXPECT_FALSE(queue.empty());
  queue.advance(1, sent);
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(owner.expired());
  sent.clear();
  EXPECT_TRUE(owner.expired());
}

// Captures at each point of the stream, then overwrites the borrowed memory: the stream must not change.
TEST(SendQueue, CapturesAtAnyPointKeepTheStream) {
  std::string expected;
  for (int i = 0; i < 3; ++i) expected += encode(sample_message(i));
  const std::size_t length = expected.size() / 3;
  // Test each point near the beginnings, where the pieces are short, and some points in between.
  for (std::size_t point = 0; point < expected.size(); point += point % length < 90 ? 1 : 61) {
    SendQueue queue;
    std::vector<Buffer> borrowed;
    for (int i = 0; i < 3; ++i) {
      Message message = sample_message(i, Buffer::Sharing::kBorrowed);
      borrowed.insert(borrowed.end(), {message.buffers[0], message.buffers[3]});
      push(queue, i + 1, std::move(message));
    }
    SendQueue::Sent sent;
    std::string written;
    while (written.size() < point) written += write_some(queue, point - written.size(), 64, sent);
    for (uint64_t ticket = 1; ticket <= 3; ++ticket) {
      capture(queue, ticket);
      capture(queue, ticket);
    }
    for (Buffer& buffer : borrowed) std::memset(buffer.data(), '!', buffer.size());
    while (!queue.empty()) written += write_some(queue, 500, 3, sent);
    ASSERT_TRUE(written == expected) << point;
  }
}

// The copy is made while other bytes are sent, and is put in place after that.
TEST(SendQueue, BytesSentDuringACaptureAreNotSentAgain) {
  Message message;
  message.buffers = {buffer_of(std::string(6'000, 'b'), Buffer::Sharing::kBorrowed)};
  std::string expected = encode(message);
  SendQueue queue;
  constexpr uint64_t ticket = 7;
  push(queue, ticket, std::move(message));
  SendQueue::Sent sent;
  std::string written = write_some(queue, 300, 64, sent);
  auto parts = queue.borrowed_parts(ticket);
  ASSERT_EQ(parts.size(), 1);
  // The capture copies only the unsent bytes.
  EXPECT_EQ(parts[0].offset, 300 - (expected.size() - 6'000));
  std::string copy(static_cast<const char*>(parts[0].buffer.data()) + parts[0].offset,
                   parts[0].buffer.size() - parts[0].offset);
  written += write_some(queue, 400, 64, sent);
  parts[0].buffer = buffer_of(copy);
  queue.replace_borrowed(ticket, parts);
  while (!queue.empty()) written += write_some(queue, 77, 64, sent);
  EXPECT_TRUE(written == expected);
}

// After the first capture the program may modify its memory, so the second copy may have later bytes.
TEST(SendQueue, FirstOfTwoConcurrentCapturesIsUsed) {
  Message message;
  message.buffers = {buffer_of(std::string(6'000, 'b'), Buffer::Sharing::kBorrowed)};
  const std::string expected = encode(message);
  SendQueue queue;
  push(queue, 7, std::move(message));
  auto first = queue.borrowed_parts(7), second = queue.borrowed_parts(7);
  first[0].buffer = buffer_of(std::string(6'000, 'b'));
  second[0].buffer = buffer_of(std::string(6'000, '!'));
  queue.replace_borrowed(7, first);
  queue.replace_borrowed(7, second);
  SendQueue::Sent sent;
  std::string written;
  while (!queue.empty()) written += write_some(queue, 1'000, 64, sent);
  EXPECT_TRUE(written == expected);
}

TEST(SendQueue, CapturesOfUnknownMessagesDoNothing) {
  SendQueue queue;
  EXPECT_TRUE(queue.borrowed_parts(0).empty());
  EXPECT_TRUE(queue.borrowed_parts(1).empty());
  push(queue, 1, sample_message(1, Buffer::Sharing::kBorrowed));
  push(queue, 2, Message());
  EXPECT_EQ(queue.borrowed_parts(1).size(), 2);
  EXPECT_TRUE(queue.borrowed_parts(2).empty());
  auto parts = queue.borrowed_parts(1);
  {
    const SendQueue::Unsent unsent = queue.clear();
    EXPECT_TRUE(queue.empty());
    // It shares the memory with `parts`.
    EXPECT_GT(parts.front().buffer.owner().use_count(), 1);
  }
  EXPECT_EQ(parts.front().buffer.owner().use_count(), 1);
  queue.replace_borrowed(1, parts);
  push(queue, 3, Message());
  EXPECT_FALSE(queue.empty());
}

TEST(SendQueue, OwnedBuffersAreNotCaptured) {
  SendQueue queue;
  push(queue, 1, sample_message(5));
  EXPECT_TRUE(queue.borrowed_parts(1).empty());
}

TEST(SendQueue, SmallMessagesAreSentInOnePieceAndNotKept) {
  SendQueue queue;
  std::string expected;
  std::weak_ptr<void> owner;
  for (int i = 0; i < 50; ++i) {
    Message message;
    message.header = "small";
    message.buffers = {buffer_of(std::to_string(i), Buffer::Sharing::kBorrowed)};
    expected += encode(message);
    owner = message.buffers[0].owner();
    push(queue, i + 1, std::move(message));
    EXPECT_TRUE(queue.borrowed_parts(i + 1).empty());
  }
  iovec pieces[64];
  ASSERT_EQ(queue.gather(pieces, 64), 1);
  EXPECT_EQ(std::string(static_cast<const char*>(pieces[0].iov_base), pieces[0].iov_len), expected);
}

// Simulates another thread that is in the write system call.
TEST(SendQueue, GatheredPiecesStayValidWhileMoreIsPushed) {
  SendQueue queue;
  std::string expected;
  Message first = sample_message(0);
  expected = encode(first);
  push(queue, 1, std::move(first));
  push(queue, 2, Message());
  expected += encode(Message());
  iovec pieces[64];
  const int count = queue.gather(pieces, 64);
  for (int i = 0; i < 500; ++i) push(queue, 3 + i, Message());
  for (int i = 0; i < 500; ++i) push(queue, 503 + i, sample_message(i % 2 == 0 ? 0 : 7));
  iovec second[64];
  ASSERT_GE(queue.gather(second, 64), count);
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(second[i].iov_base, pieces[i].iov_base);
    EXPECT_EQ(second[i].iov_len, pieces[i].iov_len);
  }
  std::string gathered;
  for (int i = 0; i < count; ++i)
    gathered.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
  EXPECT_TRUE(gathered == expected);
}

TEST(SendQueue, MessagesForWhichThereIsNoMemoryLeaveNoBytes) {
  SendQueue queue;
  std::string expected;
  uint64_t ticket = 0;
  for (const std::size_t size : {std::size_t{0}, std::size_t{300}, SendQueue::kCopiedBytes}) {
    Message message;
    message.header = std::string(size, 'h');
    message.buffers = {buffer_of("tail")};
    expected += encode(message);
    ++ticket;
    bool pushed = false;
    for (int succeed = 0; !pushed; ++succeed) {
      const FailingMemory failing(succeed);
      try {
        queue.push(ticket, message);
        pushed = true;
      } catch (const std::bad_alloc&) {
      }
    }
  }
  EXPECT_EQ(queue.bytes(), expected.size());
  SendQueue::Sent sent;
  EXPECT_EQ(write_some(queue, expected.size() + 1, 64, sent), expected);
}

TEST(SendQueue, StripedBuffersAreSentInShares) {
  const std::size_t size = 3 * kMinStripedBytes + 17;
  const Striping striping{.stripes = 2, .from_bytes = kMinStripedBytes};
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + (i >> 9));
  Message message;
  message.header = "striped";
  message.buffers = {buffer_of("short"), buffer_of(bytes, Buffer::Sharing::kBorrowed)};
  const std::string start = encode_frame_start(message, striping) + message.header + "short";
  std::vector<SendQueue> queues(3);
  for (int stripe = 1; stripe <= 2; ++stripe) {
    const StripeShare share = stripe_share(size, 2, stripe);
    const Buffer& whole = message.buffers[1];
    queues[stripe].push_shares(5, {Buffer(static_cast<char*>(whole.data()) + share.offset, share.size,
                                          whole.owner(), whole.sharing())});
    EXPECT_EQ(queues[stripe].bytes(), share.size);
  }
  Buffer mine = message.buffers[1];
  queues[0].push(5, message, striping);
  std::string written[3];
  SendQueue::Sent sent;
  for (int i = 0; i < 3; ++i) {
    written[i] = write_some(queues[i], 20'000, 64, sent);
    capture(queues[i], 5);
  }
  std::memset(mine.data(), '!', mine.size());
  for (int i = 0; i < 3; ++i) {
    while (!queues[i].empty()) written[i] += write_some(queues[i], 50'000, 64, sent);
    EXPECT_EQ(queues[i].bytes(), 0);
  }
  EXPECT_TRUE(written[0] + written[1] + written[2] == start + bytes);
}

}  // namespace
}  // namespace gradwire::transport
