#include "gradwire/transport/ucx/ucx_frame.h"

#include "gradwire/transport/recording_listener.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

absl::string_view bytes_of(const std::array<char, UcxHead::kBytes>& bytes) {
  return {bytes.data(), bytes.size()};
}

TEST(UcxHead, SurvivesEncoding) {
  const UcxHead head{UcxHead::Kind::kBuffer, uint64_t{1} << 63, uint64_t{1} << 40, 4'000'000'000u};
  const auto bytes = head.encode();
  const auto parsed = UcxHead::parse(bytes_of(bytes));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->kind, head.kind);
  EXPECT_EQ(parsed->sequence, head.sequence);
  EXPECT_EQ(parsed->length, head.length);
  EXPECT_EQ(parsed->number, head.number);
}

TEST(UcxHead, MalformedHeadIsInvalid) {
  const auto good = UcxHead().encode();
  EXPECT_FALSE(UcxHead::parse("").ok());
  EXPECT_FALSE(UcxHead::parse(bytes_of(good).substr(1)).ok());
  for (std::size_t offset : {0u, 3u, 4u, 5u, 6u, 7u, 28u, 31u}) {
    auto bad = good;
    bad[offset] = 77;
    EXPECT_EQ(UcxHead::parse(bytes_of(bad)).status().code(), absl::StatusCode::kInvalidArgument) << offset;
  }
}

TEST(UcxHead, DataThatDoesNotMatchTheHeadIsInvalid) {
  Limits limits;
  limits.max_header_bytes = 100;
  limits.max_buffers = 3;
  limits.max_buffer_bytes = 1'000'000;
  auto ok = [&limits](UcxHead head, uint64_t bytes) { return head.check_data(bytes, limits).ok(); };
  using Kind = UcxHead::Kind;
  EXPECT_TRUE(ok({Kind::kHello, 0, 0, 0}, 0));
  EXPECT_FALSE(ok({Kind::kHello, 0, 0, 0}, 1));
  EXPECT_FALSE(ok({Kind::kHello, 1, 0, 0}, 0));
  EXPECT_TRUE(ok({Kind::kGoodbye, 1, 0, 0}, 0));
  EXPECT_TRUE(ok({Kind::kHandshake, 0, 1'032, 0}, 1'032));
  EXPECT_FALSE(ok({Kind::kHandshake, 0, 1'033, 0}, 1'033));
  EXPECT_FALSE(ok({Kind::kHandshake, 0, 100, 0}, 99));
  EXPECT_FALSE(ok({Kind::kHandshake, 1, 100, 0}, 100));
  EXPECT_FALSE(ok({Kind::kHandshake, 0, 100, 1}, 100));
  EXPECT_FALSE(ok({Kind::kGoodbye, 0, 1, 0}, 0));
  EXPECT_TRUE(ok({Kind::kMessage, 1, 100, 3}, 124));
  EXPECT_FALSE(ok({Kind::kMessage, 1, 101, 3}, 125));
  EXPECT_FALSE(ok({Kind::kMessage, 1, 100, 4}, 132));
  EXPECT_FALSE(ok({Kind::kMessage, 1, 100, 3}, 123));
  EXPECT_FALSE(ok({Kind::kMessage, 1, 100, 3}, 125 + 3 * UcxHead::kSeparateFrom));
  EXPECT_FALSE(ok({Kind::kMessage, 1, ~uint64_t{0}, 3}, 23));
  EXPECT_TRUE(ok({Kind::kBuffer, 1, 1'000'000, 2}, 1'000'000));
  EXPECT_FALSE(ok({Kind::kBuffer, 1, 1'000'000, 3}, 1'000'000));
  EXPECT_FALSE(ok({Kind::kBuffer, 1, 1'000'001, 2}, 1'000'001));
  EXPECT_FALSE(ok({Kind::kBuffer, 1, 1'000'000, 2}, 999'999));
  EXPECT_FALSE(ok({Kind::kBuffer, 1, 5, 2}, 5));
}

TEST(UcxFrame, CarriesTheHeaderAndShortBuffers) {
  Message message;
  message.header = "header";
  message.buffers = {make_test_buffer(5, 1), make_test_buffer(UcxHead::kSeparateFrom, 2), Buffer(),
                     make_test_buffer(7, 3)};
  const std::string data = encode_ucx_frame(message);
  const UcxHead head{UcxHead::Kind::kMessage, 1, 6, 4};
  ASSERT_TRUE(head.check_data(data.size(), Limits()).ok());
  const auto frame = UcxFrame::parse(head, data, Limits());
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->sizes, (std::vector<uint64_t>{5, UcxHead::kSeparateFrom, 0, 7}));
  EXPECT_EQ(frame->header, "header");
  const absl::string_view first(static_cast<const char*>(message.buffers[0].data()), 5);
  const absl::string_view last(static_cast<const char*>(message.buffers[3].data()), 7);
  EXPECT_EQ(frame->buffers, std::string(first) + std::string(last));
}

TEST(UcxFrame, SizesThatContradictTheDataAreInvalid) {
  Message message;
  message.buffers = {make_test_buffer(5, 1), make_test_buffer(5, 1)};
  const UcxHead head{UcxHead::Kind::kMessage, 1, 0, 2};
  const std::string good = encode_ucx_frame(message);
  ASSERT_TRUE(UcxFrame::parse(head, good, Limits()).ok());
  for (char size : {0, 4, 6}) {
    std::string bad = good;
    bad[8] = size;
    EXPECT_FALSE(UcxFrame::parse(head, bad, Limits()).ok());
  }
  // The sizes exceed the limit for all buffers, and their sum would overflow.
  std::string large = good;
  for (std::size_t i : {7u, 15u}) large[i] = static_cast<char>(0xff);
  EXPECT_FALSE(UcxFrame::parse(head, large, Limits()).ok());
}

}  // namespace
}  // namespace gradwire::transport
