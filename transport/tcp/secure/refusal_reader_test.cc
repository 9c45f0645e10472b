#include "gradwire/transport/tcp/secure/refusal_reader.h"

#include <algorithm>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

using Progress = RefusalReader::Progress;
using security::Record;

// Adds the bytes in pieces of at most `step`. `left` receives the bytes that were not taken.
Progress add_all(RefusalReader& reader, const std::string& bytes, std::size_t step,
                 std::string* left = nullptr) {
  Progress progress = Progress::kMore;
  for (std::size_t at = 0; at < bytes.size() && progress == Progress::kMore;) {
    absl::Span<const char> piece = absl::MakeConstSpan(bytes).subspan(at, step);
    const std::size_t size = piece.size();
    progress = reader.add(piece);
    at += size - piece.size();
    if (progress != Progress::kMore && left != nullptr) *left = bytes.substr(at);
  }
  return progress;
}

TEST(RefusalReader, ARefusalInPiecesOfAnySizeIsRead) {
  const std::string bytes = Record::refusal("a token is missing").encode();
  for (std::size_t step = 1; step <= bytes.size() + 5; ++step) {
    RefusalReader reader;
    std::string left;
    EXPECT_EQ(add_all(reader, bytes + "frame", step, &left), Progress::kRefusal);
    EXPECT_EQ(reader.sentence(), "a token is missing");
    EXPECT_EQ(left, "frame");
  }
}

TEST(RefusalReader, OtherBytesAreGivenBack) {
  for (const std::string& bytes :
       {std::string("GWf1 and more"), std::string("GWa1\x09 and more"), std::string("x"),
        Record{Record::Kind::kHello, "hello"}.encode() + "more", std::string("GWa1\x05\x00\xff\xff", 8)}) {
    for (std::size_t step = 1; step <= bytes.size(); ++step) {
      RefusalReader reader;
      std::string left;
      EXPECT_EQ(add_all(reader, bytes, step, &left), Progress::kOther) << bytes;
      EXPECT_EQ(reader.held() + left, bytes);
    }
  }
}

TEST(RefusalReader, ASentenceOfAPeerIsPrintable) {
  RefusalReader reader;
  EXPECT_EQ(add_all(reader, Record{Record::Kind::kRefusal, "bad\n\x1b[2J\xff"}.encode(), 3),
            Progress::kRefusal);
  EXPECT_EQ(reader.sentence(), "bad??[2J?");
}

TEST(RefusalReader, AnEmptyOrCutRefusalDoesNoHarm) {
  RefusalReader empty;
  EXPECT_EQ(add_all(empty, Record{Record::Kind::kRefusal, ""}.encode(), 8), Progress::kRefusal);
  EXPECT_EQ(empty.sentence(), "");
  RefusalReader cut;
  EXPECT_EQ(add_all(cut, Record::refusal("a sentence").encode().substr(0, 12), 12), Progress::kMore);
}

}  // namespace
}  // namespace gradwire::transport
