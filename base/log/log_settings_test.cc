#include "gradwire/base/log/log_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace gradwire {
namespace {

LogSettings read(const std::map<std::string, std::string>& variables) {
  return LogSettings::read([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(LogSettings, DefaultIsTextFromWarningsOn) {
  for (const LogSettings& settings :
       {read({}), read({{"GRADWIRE_LOG_LEVEL", ""}, {"GRADWIRE_LOG_FORMAT", ""}})}) {
    EXPECT_EQ(settings.threshold, LogLevel::kWarning);
    EXPECT_EQ(settings.format, LogFormat::kText);
    EXPECT_EQ(settings.rank, std::nullopt);
    EXPECT_TRUE(settings.terminal);
    EXPECT_TRUE(settings.progress());
    EXPECT_EQ(settings.complaint, "");
  }
}

TEST(LogSettings, VariablesChooseLevelFormatAndRank) {
  const LogSettings settings =
      read({{"GRADWIRE_LOG_LEVEL", "error"}, {"GRADWIRE_LOG_FORMAT", "json"}, {"RANK", "7"}});
  EXPECT_EQ(settings.threshold, LogLevel::kError);
  EXPECT_EQ(settings.format, LogFormat::kJson);
  EXPECT_EQ(settings.rank, 7);
  EXPECT_FALSE(settings.terminal);
  EXPECT_FALSE(settings.progress());
  EXPECT_EQ(read({{"GRADWIRE_LOG_LEVEL", "debug"}}).threshold, LogLevel::kDebug);
  EXPECT_EQ(read({{"GRADWIRE_LOG_LEVEL", "info"}}).threshold, LogLevel::kInfo);
  EXPECT_EQ(read({{"GRADWIRE_LOG_LEVEL", "off"}}).threshold, LogLevel::kOff);
}

TEST(LogSettings, UnknownValuesAreNamed) {
  const LogSettings settings =
      read({{"GRADWIRE_LOG_LEVEL", "loud"}, {"GRADWIRE_LOG_FORMAT", "xml"}, {"RANK", "-1"}});
  EXPECT_EQ(settings.threshold, LogLevel::kWarning);
  EXPECT_EQ(settings.format, LogFormat::kText);
  EXPECT_EQ(settings.rank, std::nullopt);
  EXPECT_EQ(settings.complaint,
            "GRADWIRE_LOG_LEVEL: got \"loud\", expected one of debug, info, warning, error, off; "
            "GRADWIRE_LOG_FORMAT: got \"xml\", expected one of text, json");
}

TEST(LogSettings, OneWorkerOfAHostIsTheFirst) {
  EXPECT_TRUE(read({}).first_on_host);
  EXPECT_TRUE(read({{"LOCAL_RANK", "0"}}).first_on_host);
  EXPECT_FALSE(read({{"LOCAL_RANK", "1"}}).first_on_host);
}

TEST(LogSettings, DumbTerminalHasNoMovingLine) { EXPECT_FALSE(read({{"TERM", "dumb"}}).terminal); }

}  // namespace
}  // namespace gradwire
