#include "gradwire/tools/launch/job/summary.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_split.h"

namespace gradwire::tools {
namespace {

const absl::Time kTime = absl::FromUnixMillis(1700000000123);

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  return lines;
}

rendezvous::Failure failure(int rank) {
  return {.host = "gpu1",
          .rank = rank,
          .role = "trainer",
          .local_rank = rank % 8,
          .pid = 4711 + rank,
          .exit_code = 1,
          .time = kTime,
          .message = "UNAVAILABLE: the peer has left"};
}

TEST(FailureSummary, FirstFailureIsInFullAndTheOthersInATable) {
  rendezvous::Failure killed = failure(12);
  killed.exit_code = 0;
  killed.signal = SIGSEGV;
  killed.message = "";
  EXPECT_EQ(failure_summary("./train", failure(3), {killed, failure(2)}, absl::UTCTimeZone()),
            R"(========================================================================
./train failed; first of all
  rank      3 (local rank 3, role trainer)
  host      gpu1, pid 4714
  ended by  exit code 1
  time      2023-11-14 22:13:20.123 +00:00
  message   UNAVAILABLE: the peer has left
------------------------------------------------------------------------
then
  rank  local  role     host   pid  ended by     time          message
    12      4  trainer  gpu1  4723  SIGSEGV      22:13:20.123
     2      2  trainer  gpu1  4713  exit code 1  22:13:20.123  UNAVAILABLE: the peer has left
========================================================================
)");
}

TEST(FailureSummary, OneFailureNeedsNoTable) {
  rendezvous::Failure alone = failure(0);
  alone.message = "";
  const std::string text = failure_summary("./train", alone, {}, absl::UTCTimeZone());
  EXPECT_EQ(text.find("then"), std::string::npos) << text;
  EXPECT_NE(text.find("message   none"), std::string::npos) << text;
}

TEST(FailureSummary, LinesStayWithinTheWidth) {
  rendezvous::Failure wide = failure(1 << 29);
  wide.local_rank = 4095;
  wide.role = std::string(200, 'r');
  wide.host = "first-" + std::string(200, 'h') + "-last";
  wide.pid = 4194303;
  wide.signal = 64;
  wide.message = std::string(150, 'm');
  for (int i = 0; i < 60; ++i) wide.message += " words";
  rendezvous::Failure umlauts = wide;
  umlauts.role = umlauts.host = umlauts.message = "";
  for (int i = 0; i < 200; ++i) {
    for (std::string* text : {&umlauts.role, &umlauts.host, &umlauts.message}) *text += "\xc3\xa4";
  }
  const std::string text =
      failure_summary(std::string(300, 'p'), wide, {wide, umlauts, failure(1)}, absl::UTCTimeZone());
  for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 160u) << line;
  for (const std::string& line : lines_of(failure_summary(std::string(300, 'p'), wide, {wide}))) {
    EXPECT_LE(line.size(), 110u) << line;
  }
  EXPECT_NE(text.find("first-"), std::string::npos);
  EXPECT_NE(text.find("-last"), std::string::npos);
  lines_of(failure_summary("p", umlauts, {}, absl::UTCTimeZone()));
}

TEST(FailureSummary, ManyOthersAreCounted) {
  std::vector<rendezvous::Failure> others;
  for (int rank = 1; rank < 64; ++rank) others.push_back(failure(rank));
  const std::string text = failure_summary("p", failure(0), others, absl::UTCTimeZone());
  EXPECT_NE(text.find("\n  and 31 more\n"), std::string::npos) << text;
}

TEST(FailureSummary, ControlCharactersDoNotReachTheTerminal) {
  rendezvous::Failure hostile = failure(0);
  hostile.role = "r\x1b[2J";
  hostile.host = "h\n\x07o";
  hostile.message = "m\r\x9b";
  for (char c : failure_summary("p\x1b", hostile, {hostile}, absl::UTCTimeZone())) {
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c < 0x7f)) << static_cast<int>(c);
  }
}

}  // namespace
}  // namespace gradwire::tools
