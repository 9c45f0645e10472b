#include "gradwire/transport/turns/read_size.h"

#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

TEST(ReadSize, GrowsWhileWholeReadsTakeLittleTime) {
  ReadSize size(1024, 4096, 16384);
  size.on_handled(4096, Turns::kRound / 4);
  EXPECT_EQ(size.bytes(), 8192u);
  size.on_handled(8192, absl::ZeroDuration());
  EXPECT_EQ(size.bytes(), 16384u);
  size.on_handled(16384, absl::ZeroDuration());
  EXPECT_EQ(size.bytes(), 16384u);
}

TEST(ReadSize, StaysWhenLittleWasThereOrTheTimeFits) {
  ReadSize size(1024, 4096, 16384);
  size.on_handled(4095, absl::ZeroDuration());
  size.on_handled(4096, Turns::kRound / 2);
  EXPECT_EQ(size.bytes(), 4096u);
}

TEST(ReadSize, ShrinksToWhatFitsIntoARound) {
  ReadSize size(1024, 16384, 16384);
  size.on_handled(16384, 4 * Turns::kRound);
  EXPECT_EQ(size.bytes(), 4096u);
  size.on_handled(4096, 1000 * Turns::kRound);
  EXPECT_EQ(size.bytes(), 1024u);
}

TEST(ReadSize, ATimeThatIsNotKnownToBeLongShrinksToTheBytesThatWereHandled) {
  ReadSize size(1024, 16384, 16384);
  size.on_handled(3000, Turns::kRound);
  EXPECT_EQ(size.bytes(), 3000u);
}

}  // namespace
}  // namespace gradwire::transport
