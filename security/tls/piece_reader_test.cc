#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "gradwire/security/tls/tls_stream.h"

namespace gradwire::security {
namespace {

iovec piece_of(std::string& text) { return {text.data(), text.size()}; }

TEST(PieceReader, LargePiecesStayInPlaceAndSmallOnesAreGathered) {
  std::string a = "ab";
  std::string none;
  std::string b = "cdefgh";
  const std::vector<iovec> pieces = {piece_of(none), piece_of(a), piece_of(none), piece_of(b),
                                     piece_of(none)};
  PieceReader reader(pieces);
  char room[4];
  EXPECT_EQ(reader.size(), 8);
  EXPECT_TRUE(reader.needs_copy(4));
  EXPECT_EQ(reader.next(4, room), "abcd");
  EXPECT_FALSE(reader.needs_copy(4));
  const absl::string_view rest = reader.next(4, nullptr);
  EXPECT_EQ(rest, "efgh");
  EXPECT_EQ(rest.data(), b.data() + 2);
  EXPECT_EQ(reader.size(), 0);
  EXPECT_FALSE(reader.needs_copy(4));
}

TEST(PieceReader, EveryDivisionGivesTheSameBytes) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> texts(random() % 6);
    std::string all;
    std::vector<iovec> pieces;
    for (std::string& text : texts) {
      for (size_t size = random() % 12; size > 0; --size) text += static_cast<char>(random());
      all += text;
      pieces.push_back(piece_of(text));
    }
    PieceReader reader(pieces);
    const size_t skipped = random() % (all.size() + 1);
    reader.skip(skipped);
    std::string read;
    while (reader.size() > 0) {
      const size_t most = 1 + random() % 8;
      std::string room(most, '\0');
      const size_t before = reader.size();
      const absl::string_view record = reader.next(most, room.data());
      ASSERT_EQ(record.size(), std::min(most, before));
      read.append(record.data(), record.size());
    }
    ASSERT_EQ(read, all.substr(skipped)) << round;
  }
}

}  // namespace
}  // namespace gradwire::security
