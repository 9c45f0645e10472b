#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/log/log.h"

// The log of a process that runs with GRADWIRE_LOG_FORMAT=text, GRADWIRE_LOG_LEVEL=info and RANK=3.
namespace gradwire {
namespace {

using ::testing::EndsWith;
using ::testing::SizeIs;

std::vector<std::string> lines_of(const std::function<void()>& work) {
  ::testing::internal::CaptureStderr();
  work();
  const std::string text = ::testing::internal::GetCapturedStderr();
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

TEST(TextLog, LineNamesTheRank) {
  const auto lines = lines_of([] { log(LogLevel::kInfo, "step ", 7); });
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0].substr(0, 2), "I ");
  EXPECT_THAT(lines[0], EndsWith(absl::StrCat(" ", getpid(), " gradwire[rank 3]: step 7")));
}

TEST(TextLog, LinesBelowTheLevelAreDropped) {
  EXPECT_FALSE(log_enabled(LogLevel::kDebug));
  EXPECT_THAT(lines_of([] { log(LogLevel::kDebug, "hidden"); }), SizeIs(0));
}

TEST(TextLog, MessageWithNewlinesIsOneLine) {
  EXPECT_THAT(lines_of([] { log(LogLevel::kInfo, "a\nb\n"); }),
              ::testing::ElementsAre(EndsWith(": a\\nb\\n")));
}

TEST(TextLog, TextOfSeveralLinesIsARecordForEach) {
  EXPECT_THAT(lines_of([] { log_text(LogLevel::kInfo, "a\nb\n"); }),
              ::testing::ElementsAre(EndsWith("gradwire[rank 3]: a"), EndsWith("gradwire[rank 3]: b")));
}

TEST(TextLog, LinesOfThreadsAreNotMixed) {
  constexpr int kThreads = 4, kLines = 500;
  const auto lines = lines_of([] {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([i] {
        for (int line = 0; line < kLines; ++line) log(LogLevel::kInfo, std::string(200, 'a' + i));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_THAT(lines, SizeIs(kThreads * kLines));
  for (const std::string& line : lines) EXPECT_THAT(line, EndsWith(": " + std::string(200, line.back())));
}

}  // namespace
}  // namespace gradwire
