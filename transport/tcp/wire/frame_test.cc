#include "gradwire/transport/tcp/wire/frame.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "gradwire/base/process/shortage.h"
#include "gradwire/base/testing/limits.h"
#include "gradwire/transport/common/message_sizes.h"
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

// Each part alone fits into the received bytes, but all parts together do not.
TEST(FrameParser, IncompleteSmallFrameIsNotComplete) {
  Message message;
  message.header = "12345678";
  message.buffers = {buffer_of("abcdefgh"), buffer_of("ABCDEFGH")};
  const std::string bytes = encode(message);
  for (std::size_t missing : {1, 8, 15}) {
    // A separate copy, so that no other bytes follow it in memory.
    const std::vector<char> begin(bytes.begin(), bytes.end() - static_cast<std::ptrdiff_t>(missing));
    BufferPool pool;
    FrameParser parser(Limits(), pool);
    absl::Span<const char> piece(begin);
    ASSERT_TRUE(parser.consume(piece).ok());
    EXPECT_TRUE(piece.empty());
    ASSERT_FALSE(parser.complete()) << missing;
    absl::Span<const char> rest = absl::Span<const char>(bytes).last(missing);
    ASSERT_TRUE(parser.consume(rest).ok());
    ASSERT_TRUE(parser.complete());
    EXPECT_EQ(encode(parser.take()), bytes);
  }
}

// As a connection reads: into several places at once, filled to any extent.
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
  bytes[4] = 77;
  absl::Status status = parse(bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("version 77"), std::string::npos) << status;
}

TEST(FrameParser, UnknownKindsAndReservedBytesAreInvalid) {
  for (std::size_t offset : {5, 6, 7, 20, 23}) {
    std::string bytes = encode(sample_message());
    bytes[offset] = 2;
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
  put(overflowing, 24, ~uint64_t{0} >> 1, 8);
  put(overflowing, 32, ~uint64_t{0} >> 1, 8);
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
  put(bytes, 24, ~uint64_t{0} >> 1, 8);
  put(bytes, 32, 20, 8);
  absl::Status status = parse(bytes, limits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("max_message_bytes = 1000"), std::string::npos) << status;
}

TEST(FrameParser, AnnouncedBytesUseNoMemoryBeforeTheyArrive) {
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
  EXPECT_TRUE(parser.places(&place, 1).ok());
  EXPECT_TRUE(is_local_shortage(parser.lost())) << parser.lost();
}

// The bytes of a frame are read in both ways: to places, and from scratch memory.
TEST(FrameParser, AFrameWithoutMemoryIsDroppedAndTheNextOneArrives) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  Message large;
  large.header = "large";
  large.buffers = {buffer_of(std::string(100, '1')), buffer_of(std::string(kBytes, '2')),
                   buffer_of(std::string(100, '3'))};
  Message small;
  small.header = "small";
  small.buffers = {buffer_of(std::string(100, '4'))};
  const std::string bytes = encode(large) + encode(small);
  for (const bool to_places : {false, true}) {
    BufferPool pool;
    FrameParser parser(Limits(), pool);
    absl::Span<const char> rest(bytes);
    {
      const LimitScope limit(RLIMIT_AS, address_space_and(kBytes / 2));
      while (!parser.complete()) {
        if (!to_places) {
          absl::Span<const char> piece = rest.first(std::min<std::size_t>(100'000, rest.size()));
          const std::size_t before = piece.size();
          ASSERT_TRUE(parser.consume(piece).ok());
          rest.remove_prefix(before - piece.size());
          continue;
        }
        iovec places[4];
        const absl::StatusOr<int> count = parser.places(places, 4);
        ASSERT_TRUE(count.ok()) << count.status();
        std::size_t read = 0;
        for (int i = 0; i < *count; ++i) {
          std::memcpy(places[i].iov_base, rest.data() + read, places[i].iov_len);
          read += places[i].iov_len;
        }
        rest.remove_prefix(read);
        ASSERT_TRUE(parser.advance(read).ok());
      }
    }
    EXPECT_TRUE(is_local_shortage(parser.lost())) << parser.lost();
    EXPECT_NE(parser.lost().message().find("RLIMIT_AS"), std::string::npos) << parser.lost();
    const Message lost = parser.take();
    EXPECT_EQ(lost.header, "large");
    EXPECT_TRUE(lost.buffers.empty());
    ASSERT_TRUE(parser.consume(rest).ok());
    ASSERT_TRUE(parser.complete());
    EXPECT_TRUE(parser.lost().ok()) << parser.lost();
    const Message next = parser.take();
    EXPECT_EQ(next.header, "small");
    EXPECT_EQ(text_of(next.buffers.at(0)), std::string(100, '4'));
  }
}

// Parses a complete stream in pieces of `step` bytes, then copies the bytes of its stripes to their places.
absl::StatusOr<Message> parse_striped(const std::string (&streams)[3], std::size_t step, int stripes) {
  static const Limits limits;
  static BufferPool pool;
  FrameParser parser(limits, pool);
  parser.set_stripes(stripes);
  std::vector<FrameParser::ShareMemory> places;
  absl::Span<const char> rest(streams[0]);
  while (!parser.complete() && !rest.empty()) {
    absl::Span<const char> piece = rest.first(std::min(step, rest.size()));
    const std::size_t before = piece.size();
    if (absl::Status status = parser.consume(piece); !status.ok()) return status;
    rest.remove_prefix(before - piece.size());
    for (const FrameParser::ShareMemory& place : parser.take_stripe_places()) places.push_back(place);
  }
  if (!parser.complete()) return absl::UnavailableError("incomplete");
  std::size_t done[3] = {};
  for (const FrameParser::ShareMemory& place : places) {
    std::memcpy(place.data, streams[place.stripe].data() + done[place.stripe], place.size);
    done[place.stripe] += place.size;
  }
  EXPECT_EQ(done[1], streams[1].size());
  EXPECT_EQ(done[2], streams[2].size());
  return parser.take();
}

TEST(FrameParser, StripedBuffersAreAssembledFromTheirShares) {
  const Striping striping{.stripes = 2, .from_bytes = 100'000};
  Message message;
  message.header = "striped";
  message.buffers = {buffer_of(std::string(300'001, 'a')), buffer_of(std::string(99'999, 'b')),
                     buffer_of(std::string(100'000, 'c'))};
  std::string streams[3] = {encode_frame_start(message, striping) + message.header};
  for (const Buffer& buffer : message.buffers) {
    const std::string text = text_of(buffer);
    if (!striping.covers(text.size())) {
      streams[0] += text;
      continue;
    }
    for (int i = 0; i < 3; ++i) {
      const StripeShare share = stripe_share(text.size(), 2, i);
      streams[i] += text.substr(share.offset, share.size);
    }
  }
  for (std::size_t step : {1'000, 77'777, 10'000'000}) {
    auto received = parse_striped(streams, step, 2);
    ASSERT_TRUE(received.ok()) << received.status();
    ASSERT_EQ(received->buffers.size(), 3);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(text_of(received->buffers[i]) == text_of(message.buffers[i])) << i;
    }
  }
  EXPECT_EQ(parse_striped(streams, 1'000, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FrameParser, ASmallOrUnexpectedStripedBufferIsInvalid) {
  for (uint64_t size : {uint64_t{0}, kMinStripedBytes - 1}) {
    std::string streams[3] = {frame_announcing(0, 1) + std::string(8, '\0')};
    streams[0][6] = 2;
    put(streams[0], 24, size | uint64_t{1} << 63, 8);
    EXPECT_EQ(parse_striped(streams, 1'000, 2).status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
  std::string streams[3] = {frame_announcing(0, 1) + std::string(8, '\0')};
  put(streams[0], 24, uint64_t{1'000'000} | uint64_t{1} << 63, 8);
  EXPECT_EQ(parse_striped(streams, 1'000, 2).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FrameParser, ControlFramesAreDistinguished) {
  Limits limits;
  BufferPool pool;
  FrameParser parser(limits, pool);
  const std::string bytes = encode_control_frame("abc") + encode(Message());
  absl::Span<const char> rest(bytes);
  ASSERT_TRUE(parser.consume(rest).ok());
  ASSERT_TRUE(parser.complete());
  EXPECT_TRUE(parser.is_control());
  EXPECT_EQ(parser.take().header, "abc");
  ASSERT_TRUE(parser.consume(rest).ok());
  ASSERT_TRUE(parser.complete());
  EXPECT_FALSE(parser.is_control());
  EXPECT_EQ(parse(encode_control_frame(std::string(65, 'x'))).code(), absl::StatusCode::kInvalidArgument);
}

TEST(StripeShare, SharesCoverTheBufferOnce) {
  for (int stripes = 1; stripes <= kMaxStripes; ++stripes) {
    for (uint64_t size : {kMinStripedBytes, kMinStripedBytes + 1, uint64_t{1'000'003}, uint64_t{64} << 20}) {
      uint64_t next = 0;
      for (int i = 0; i <= stripes; ++i) {
        const StripeShare share = stripe_share(size, stripes, i);
        EXPECT_EQ(share.offset, next);
        next += share.size;
      }
      EXPECT_EQ(next, size);
      EXPECT_GT(stripe_share(size, stripes, 0).size, 0);
    }
  }
}

TEST(CheckFrameLimits, MessagesAtTheLimitPassAndBeyondItFail) {
  Limits limits;
  limits.max_header_bytes = 8;
  limits.max_buffers = 4;
  limits.max_buffer_bytes = 1'000;
  limits.max_message_bytes = 1'009;
  EXPECT_TRUE(check_message_sizes(sample_message(), limits).ok());
  for (auto shrink : {+[](Limits& l) { --l.max_header_bytes; }, +[](Limits& l) { --l.max_buffers; },
                      +[](Limits& l) { --l.max_buffer_bytes; }, +[](Limits& l) { --l.max_message_bytes; }}) {
    Limits smaller = limits;
    shrink(smaller);
    EXPECT_EQ(check_message_sizes(sample_message(), smaller).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(FrameParser, AMessageIsAnnouncedOnceWhenItsHeaderIsComplete) {
  const Message message = sample_message();
  const std::string bytes = encode(message);
  const std::size_t begin = bytes.size() - message.byte_size();  // The begin of the header.
  BufferPool pool;
  FrameParser parser(Limits(), pool);
  for (int round = 0; round < 2; ++round) {
    std::size_t announced_at = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      absl::Span<const char> byte(bytes.data() + i, 1);
      ASSERT_TRUE(parser.consume(byte).ok());
      if (!parser.has_arriving()) continue;
      ASSERT_EQ(announced_at, 0);
      announced_at = i + 1;
      const FrameParser::Arriving arriving = parser.arriving();
      EXPECT_EQ(arriving.header, "a header");
      EXPECT_EQ(arriving.bytes, message.byte_size());
      EXPECT_EQ(arriving.arrived, i + 1 - begin);
    }
    EXPECT_EQ(announced_at, begin + message.header.size());
    ASSERT_TRUE(parser.complete());
    expect_sample(parser.take());
  }
}

TEST(FrameParser, AControlFrameIsNotAnnounced) {
  const std::string bytes = encode_control_frame("x");
  BufferPool pool;
  FrameParser parser(Limits(), pool);
  for (const char& byte : bytes) {
    absl::Span<const char> span(&byte, 1);
    ASSERT_TRUE(parser.consume(span).ok());
    EXPECT_FALSE(parser.has_arriving());
  }
  EXPECT_TRUE(parser.is_control());
}

}  // namespace
}  // namespace gradwire::transport
