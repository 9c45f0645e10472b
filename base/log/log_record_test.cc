#include "gradwire/base/log/log_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace gradwire {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

LogRecord record_of(absl::string_view message) {
  return {.level = LogLevel::kWarning,
          .time = absl::FromUnixMicros(1'700'000'000'123'456),
          .pid = 4711,
          .message = message};
}

std::string text(const LogRecord& record) { return format_record(record, LogFormat::kText); }

nlohmann::json json(const LogRecord& record) {
  const std::string line = format_record(record, LogFormat::kJson);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  EXPECT_THAT(line, EndsWith("}\n"));
  return nlohmann::json::parse(line);
}

TEST(LogRecord, TextHasLevelTimeProcessAndMessage) {
  EXPECT_EQ(text(record_of("it works")),
            absl::StrCat("W ",
                         absl::FormatTime("%H:%M:%E3S", absl::FromUnixMillis(1'700'000'000'123),
                                          absl::LocalTimeZone()),
                         " 4711 gradwire: it works\n"));
}

TEST(LogRecord, TextNamesTheWorkerOrElseTheRank) {
  LogRecord record = record_of("it works");
  record.rank = 3;
  EXPECT_THAT(text(record), HasSubstr(" 4711 gradwire[rank 3]: it works"));
  record.worker = "ps";
  EXPECT_THAT(text(record), HasSubstr(" 4711 gradwire[ps]: it works"));
}

TEST(LogRecord, JsonHasAllThatIsKnown) {
  LogRecord record = record_of("it \"works\"");
  EXPECT_EQ(json(record), nlohmann::json::parse(R"({"time": "2023-11-14T22:13:20.123456Z", "level": "warning",
      "pid": 4711, "message": "it \"works\""})"));
  record.rank = 3;
  record.worker = "ps";
  record.file = "bazel-out/k8/bin/rpc/_virtual_includes/link/gradwire/rpc/link/link.h";
  record.source_line = 36;
  EXPECT_EQ(json(record), nlohmann::json::parse(R"({"time": "2023-11-14T22:13:20.123456Z", "level": "warning",
      "pid": 4711, "rank": 3, "worker": "ps", "message": "it \"works\"", "source": "rpc/link/link.h:36"})"));
  record.file = "rpc/link/link.cc";
  EXPECT_EQ(json(record)["source"], "rpc/link/link.cc:36");
}

// A peer must not be able to write a line of its own into the log, or to control the terminal that shows it.
TEST(LogRecord, ControlCharactersAreEscaped) {
  const std::string message = "a\nW 12:00:00.000 1 gradwire: forged\r\t\x1b[2J\x7f";
  EXPECT_THAT(text(record_of(message)),
              EndsWith("gradwire: a\\nW 12:00:00.000 1 gradwire: forged\\r\\t\\x1b[2J\\x7f\n"));
  EXPECT_EQ(json(record_of(message))["message"], message);
  EXPECT_THAT(format_record(record_of("\x1b\x7f"), LogFormat::kJson), HasSubstr("\"\\u001b\\u007f\""));
  // A control character of two bytes, a line separator, and a character that reverses the text after it.
  EXPECT_EQ(printable("\xc2\x9b \xe2\x80\xa8 \xe2\x80\xae"), "\\u009b \\u2028 \\u202e");
}

TEST(LogRecord, NamesOfWorkersAreEscapedToo) {
  LogRecord record = record_of("m");
  record.worker = "p\ns";
  EXPECT_THAT(text(record), HasSubstr("gradwire[p\\ns]: m"));
  EXPECT_EQ(json(record)["worker"], "p\ns");
}

TEST(LogRecord, TextInUtf8StaysAsItIs) {
  const std::string message = "größer \xe2\x82\xac \xf0\x9f\x98\x80";
  EXPECT_EQ(printable(message), message);
  EXPECT_EQ(json(record_of(message))["message"], message);
}

TEST(LogRecord, InvalidUtf8IsReplaced) {
  // A byte that begins no character, a cut character, an overlong form, a surrogate, a code beyond Unicode.
  EXPECT_EQ(printable("\xff \xe2\x82 \xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80"),
            "\\xff \\xe2\\x82 \\xc0\\x80 \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80");
  EXPECT_EQ(json(record_of("a\xff"))["message"], "a\xef\xbf\xbd");
}

TEST(LogRecord, EachByteMakesOneValidLine) {
  for (int byte = 0; byte < 256; ++byte) {
    for (const std::string& rest : {"", "\x80", "\x80\x80", "x"}) {
      const std::string message = std::string(1, static_cast<char>(byte)) + rest;
      json(record_of(message));
      const std::string line = text(record_of(message));
      EXPECT_EQ(std::count_if(line.begin(), line.end(), [](char c) { return c >= 0 && c < 0x20; }), 1)
          << byte;
    }
  }
}

TEST(LogRecord, LongMessagesAreCut) {
  const std::string message = std::string(kMaxLogMessage - 1, 'x') + "\xe2\x82\xac!";
  const std::string shown = std::string(kMaxLogMessage - 1, 'x') + " ... and 4 bytes more";
  EXPECT_EQ(printable(message), shown);
  EXPECT_EQ(json(record_of(message))["message"], shown);
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 2), "ab ... and 4 bytes more");
}

TEST(LogRecord, ProgressHasItsNumbers) {
  const ProgressState state{.text = "waiting for rank 2", .done = 2, .total = 3};
  LogRecord record = record_of("");
  record.progress = &state;
  record.elapsed = absl::Seconds(12.34);
  EXPECT_THAT(text(record), HasSubstr(" 4711 gradwire: waiting for rank 2 (12s)\n"));
  EXPECT_EQ(text(record)[0], 'P');
  EXPECT_EQ(json(record),
            nlohmann::json::parse(R"({"time": "2023-11-14T22:13:20.123456Z", "level": "progress",
                "pid": 4711, "message": "waiting for rank 2", "elapsed_s": 12.3, "done": 2, "total": 3,
                "finished": false})"));
  const ProgressState end{.text = "all ranks have joined"};
  record.progress = &end;
  record.finished = true;
  EXPECT_EQ(json(record)["finished"], true);
  EXPECT_FALSE(json(record).contains("total"));
}

}  // namespace
}  // namespace gradwire
