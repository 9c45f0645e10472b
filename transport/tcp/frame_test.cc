#include "transport/tcp/frame.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

Buffer buffer_of(const std::string& text) {
  auto owner = std::make_shared<std::string>(text);
  return Buffer(owner->data(), owner->size(), owner);
}

std::string text_of(const Buffer& buffer) {
  return std::string(static_cast<const char*>(buffer.data()), buffer.size());
}

std::string encode(const Message& message) {
  std::string bytes = encode_frame_start(message) + message.header;
  for (const Buffer& buffer : message.buffers) bytes += text_of(buffer);
  return bytes;
}

void put(std::string& bytes, std::size_t offset, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes[offset + i] = static_cast<char>(value >> (8 * i));
}

std::string frame_announcing(uint64_t header_bytes, uint32_t buffers) {
  std::string bytes = encode_frame_start(Message());
  put(bytes, 8, header_bytes, 8);
  put(bytes, 16, buffers, 4);
  return bytes;
}

absl::Status parse(const std::string& bytes, const Limits& limits = Limits()) {
  BufferPool pool;
  FrameParser parser(limits, pool);
  absl::Span<const char> rest(bytes);
  return parser.consume(rest);
}

Message sample_message() {
  Message message;
  message.header = "a header";
  message.buffers = {buffer_of(std::string(1'000, 'x')), Buffer(), buffer_of("y"), Buffer()};
  return message;
}

void expect_sample(const Message& message) {
  EXPECT_EQ(message.header, "a header");
  ASSERT_EQ(message.buffers.size(), 4);
  EXPECT_EQ(text_of(message.buffers[0]), std::string(1'000, 'x'));
  EXPECT_EQ(message.buffers[1].size(), 0);
  EXPECT_EQ(text_of(message.buffers[2]), "y");
  EXPECT_EQ(message.buffers[3].size(), 0);
}

TEST(FrameParser, PiecesOfAnySizeGiveTheSameMessages) {
  std::string bytes = encode(sample_message()) + encode(Message()) + encode(sample_message());
  for (std::size_t step : {1, 2, 3, 7, 24, 25, 57, 500, 5'000}) {
    Limits limits;
    BufferPool pool;
    FrameParser parser(limits, pool);
    std::vector<Message> messages;
    for (std::size_t i = 0; i < bytes.size(); i += step) {
      absl::Span<const char> piece = absl::Span<const char>(bytes).subspan(i, step);
      while (!piece.empty()) {
        ASSERT_TRUE(parser.consume(piece).ok());
        if (parser.complete()) messages.push_back(parser.take());
      }
    }
    EXPECT_TRUE(parser.between_frames());
    ASSERT_EQ(messages.size(), 3);
    expect_sample(messages[0]);
    EXPECT_TRUE(messages[1].header.empty());
    EXPECT_TRUE(messages[1].buffers.empty());
    expect_sample(messages[2]);
  }
}

// As the connection reads: into several places at once, filled to any extent.
TEST(FrameParser, PlacesFilledInAnyStepsGiveTheMessage) {
  Message message = sample_message();
  message.header.assign(200'000, 'h');
  for (int i = 0; i < 40; ++i)
    message.buffers.push_back(buffer_of(std::string(i * 37, static_cast<char>('a' + i % 26))));
  std::string bytes = encode(message);
  std::mt19937 random(7);
  for (int max : {1, 2, 5, 16}) {
    Limits limits;
    BufferPool pool;
    FrameParser parser(limits, pool);
    std::size_t offset = 0;
    while (!parser.complete()) {
      iovec places[16];
      auto count = parser.places(places, max);
      ASSERT_TRUE(count.ok());
      ASSERT_GE(*count, 1);
      ASSERT_LE(*count, max);
      std::size_t room = 0;
      for (int i = 0; i < *count; ++i) {
        ASSERT_GT(places[i].iov_len, 0);
        room += places[i].iov_len;
      }
      ASSERT_LE(offset + room, bytes.size());
      std::size_t now = random() % (room + 1);
      std::size_t left = now;
      for (int i = 0; left > 0; ++i) {
        std::size_t step = std::min(left, places[i].iov_len);
        std::memcpy(places[i].iov_base, bytes.data() + offset, step);
        offset += step;
        left -= step;
      }
      ASSERT_TRUE(parser.advance(now).ok());
    }
    EXPECT_EQ(offset, bytes.size());
    Message received = parser.take();
    EXPECT_EQ(received.header, message.header);
    ASSERT_EQ(received.buffers.size(), message.buffers.size());
    for (std::size_t i = 0; i < message.buffers.size(); ++i) {
      EXPECT_EQ(text_of(received.buffers[i]), text_of(message.buffers[i]));
    }
  }
}

TEST(FrameParser, GarbageIsInvalidAtItsFirstByte) {
  EXPECT_TRUE(parse("G").ok());
  EXPECT_TRUE(parse("GWf").ok());
  for (const char* garbage : {"x", "GET / HTTP/1.1\r\n", "GWx", "\x16\x03\x01"}) {
    EXPECT_EQ(parse(garbage).code(), absl::StatusCode::kInvalidArgument) << garbage;
  }
}

TEST(FrameParser, AnotherVersionIsInvalid) {
  std::string bytes = encode(sample_message());
  bytes[4] = 2;
  absl::Status status = parse(bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("version 2"), std::string::npos) << status;
}

TEST(FrameParser, UnknownFlagsAreInvalid) {
  for (std::size_t offset : {5, 6, 7, 20, 23}) {
    std::string bytes = encode(sample_message());
    bytes[offset] = 1;
    EXPECT_EQ(parse(bytes).code(), absl::StatusCode::kInvalidArgument) << offset;
  }
}

TEST(FrameParser, AnnouncementsOverALimitNameIt) {
  Limits limits;
  struct Case {
    std::string bytes;
    std::string limit;
  };
  std::string huge_buffer = frame_announcing(0, 1) + std::string(8, '\0');
  put(huge_buffer, 24, uint64_t{1} << 60, 8);
  std::string many_large = frame_announcing(0, 3) + std::string(24, '\0');
  for (int i = 0; i < 3; ++i) put(many_large, 24 + 8 * i, limits.max_buffer_bytes, 8);
  std::string overflowing = frame_announcing(10, 2) + std::string(16, '\0');
  put(overflowing, 24, ~uint64_t{0}, 8);
  put(overflowing, 32, ~uint64_t{0}, 8);
  for (const Case& c : {Case{frame_announcing(uint64_t{1} << 60, 0), "max_header_bytes = 67108864"},
                        Case{frame_announcing(~uint64_t{0}, 0), "max_header_bytes"},
                        Case{frame_announcing(0, 65'537), "max_buffers = 65536"},
                        Case{frame_announcing(0, ~uint32_t{0}), "max_buffers"},
                        Case{huge_buffer, "max_buffer_bytes = 137438953472"},
                        Case{many_large, "max_message_bytes"}, Case{overflowing, "max_buffer_bytes"}}) {
    absl::Status status = parse(c.bytes, limits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(c.limit), std::string::npos) << status;
  }
}

TEST(FrameParser, TheSumOfLargeSizesDoesNotWrapAround) {
  Limits limits;
  limits.max_buffer_bytes = ~uint64_t{0};
  limits.max_message_bytes = 1'000;
  std::string bytes = frame_announcing(10, 2) + std::string(16, '\0');
  put(bytes, 24, ~uint64_t{0}, 8);
  put(bytes, 32, 20, 8);
  absl::Status status = parse(bytes, limits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("max_message_bytes = 1000"), std::string::npos) << status;
}

TEST(FrameParser, WhatIsAnnouncedTakesNoMemoryBeforeItArrives) {
  Limits limits;
  BufferPool pool;
  FrameParser parser(limits, pool);
  std::string bytes = frame_announcing(limits.max_header_bytes, 1) + std::string(8, '\0');
  absl::Span<const char> rest(bytes);
  ASSERT_TRUE(parser.consume(rest).ok());
  iovec places[8];
  auto count = parser.places(places, 8);
  ASSERT_TRUE(count.ok());
  EXPECT_EQ(*count, 1);
  EXPECT_LE(places[0].iov_len, 65'536);
}

TEST(FrameParser, ABufferWithoutMemoryIsResourceExhausted) {
  Limits limits;
  limits.max_buffer_bytes = limits.max_message_bytes = uint64_t{1} << 62;
  BufferPool pool;
  FrameParser parser(limits, pool);
  std::string bytes = frame_announcing(0, 1) + std::string(8, '\0');
  put(bytes, 24, uint64_t{1} << 61, 8);
  absl::Span<const char> rest(bytes);
  ASSERT_TRUE(parser.consume(rest).ok());
  iovec place;
  EXPECT_EQ(parser.places(&place, 1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(CheckFrameLimits, MessagesAtTheLimitPassAndBeyondItFail) {
  Limits limits;
  limits.max_header_bytes = 8;
  limits.max_buffers = 4;
  limits.max_buffer_bytes = 1'000;
  limits.max_message_bytes = 1'009;
  EXPECT_TRUE(check_frame_limits(sample_message(), limits).ok());
  for (auto shrink : {+[](Limits& l) { --l.max_header_bytes; }, +[](Limits& l) { --l.max_buffers; },
                      +[](Limits& l) { --l.max_buffer_bytes; }, +[](Limits& l) { --l.max_message_bytes; }}) {
    Limits smaller = limits;
    shrink(smaller);
    EXPECT_EQ(check_frame_limits(sample_message(), smaller).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gradwire::transport
