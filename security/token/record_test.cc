#include "gradwire/security/token/record.h"

#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using Kind = Record::Kind;

// Adds the bytes in pieces of this size.
absl::Status add(RecordParser& parser, const std::string& bytes, std::size_t piece) {
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::string next = bytes.substr(at, piece);
    const absl::StatusOr<std::size_t> taken = parser.add(next);
    if (!taken.ok()) return taken.status();
    EXPECT_EQ(*taken, next.size());
  }
  return absl::OkStatus();
}

std::string message(const std::string& bytes) {
  RecordParser parser;
  const absl::Status status = add(parser, bytes, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(Record, HasTheBytesOfTheSpecification) {
  EXPECT_EQ((Record{Kind::kProof, "abc"}).encode(), std::string("GWa1\x03\0\x03\0abc", 11));
  EXPECT_EQ((Record{Kind::kHello, std::string(0x302, 'x')}).encode().substr(0, 8),
            std::string("GWa1\x01\0\x02\x03", 8));
}

TEST(RecordParser, FindsRecordsInBytesThatArriveInPieces) {
  for (const std::size_t piece : {1, 3, 8, 5000}) {
    RecordParser parser;
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{300}, Record::kMaxBody}) {
      const Record record{Kind::kChallenge, std::string(size, 'x')};
      ASSERT_TRUE(add(parser, record.encode(), piece).ok()) << size;
      ASSERT_TRUE(parser.complete()) << size;
      const Record found = parser.take();
      EXPECT_EQ(found.kind, record.kind);
      EXPECT_EQ(found.body, record.body);
    }
  }
}

TEST(RecordParser, LeavesTheBytesBehindTheRecord) {
  RecordParser parser;
  const std::string bytes = Record{Kind::kWelcome, "abcd"}.encode();
  EXPECT_EQ(*parser.add(bytes + "frames"), bytes.size());
  EXPECT_TRUE(parser.complete());
  EXPECT_EQ(*parser.add("frames"), 0u);
  EXPECT_EQ(parser.take().body, "abcd");
}

TEST(RecordParser, WantsNoByteBehindTheRecord) {
  RecordParser parser;
  const std::string bytes = Record{Kind::kWelcome, "abcd"}.encode();
  EXPECT_EQ(parser.wanted(), 8u);
  ASSERT_TRUE(parser.add(bytes.substr(0, 5)).ok());
  EXPECT_EQ(parser.wanted(), 3u);
  ASSERT_TRUE(parser.add(bytes.substr(5, 3)).ok());
  EXPECT_EQ(parser.wanted(), 4u);
  ASSERT_TRUE(parser.add(bytes.substr(8)).ok());
  EXPECT_EQ(parser.wanted(), 0u);
  EXPECT_TRUE(parser.complete());
  parser.take();
  EXPECT_EQ(parser.wanted(), 8u);
}

TEST(RecordParser, RefusesABadHeaderAtItsFirstBadByte) {
  EXPECT_EQ(message("H"), "malformed record of the handshake: it begins with \"H\", expected \"GWa1\"");
  EXPECT_EQ(message("GWa2"), "malformed record of the handshake: it begins with \"GWa2\", expected \"GWa1\"");
  EXPECT_EQ(message(std::string("GWa1\0", 5)),
            "malformed record of the handshake: its kind is 0, expected 1 to 5");
  EXPECT_EQ(message("GWa1\x06"), "malformed record of the handshake: its kind is 6, expected 1 to 5");
  EXPECT_EQ(message("GWa1\x01\x80"), "malformed record of the handshake: its byte 5 is 128, expected 0");
}

TEST(RecordParser, BoundsTheBodyBeforeItArrives) {
  EXPECT_EQ(message(std::string("GWa1\x01\0\x01\x04", 8)),
            "malformed record of the handshake: its body has 1025 bytes, expected at most 1024");
  EXPECT_EQ(message(std::string("GWa1\x04\0\xff\xff", 8)),
            "malformed record of the handshake: its body has 65535 bytes, expected at most 1024");
  EXPECT_EQ(message(std::string("GWa1\x05\0\x01\x02", 8)),
            "malformed record of the handshake: its body has 513 bytes, expected at most 512");
  RecordParser parser;
  EXPECT_TRUE(parser.add(std::string("GWa1\x05\0\0\x02", 8)).ok());
  EXPECT_EQ(parser.wanted(), 512u);
}

TEST(Record, RefusalsAreCutAndPrintable) {
  EXPECT_EQ(Record::refusal("the store \"a\"\n\x1b[2J\xc3\xa9").sentence(), "the store \"a\"??[2J??");
  const Record longest = Record::refusal(std::string(5000, 'x'));
  EXPECT_EQ(longest.body, std::string(512, 'x'));
  // A sentence from a peer that does not keep to this.
  EXPECT_EQ((Record{Kind::kRefusal, "a\r\x7f"}).sentence(), "a??");
}

}  // namespace
}  // namespace gradwire::security
