#include "gradwire/base/flight/trace_settings.h"

#include <gtest/gtest.h>

#include <string>

namespace gradwire {
namespace {

TEST(TraceSettings, WithoutADirectoryRingsStayAsTheyAre) {
  const TraceSettings settings = parse_trace_settings(nullptr, "100");
  EXPECT_FALSE(settings.on());
  EXPECT_EQ(settings.agent_records(7), 7u);
  EXPECT_EQ(settings.group_records(7), 7u);
}

TEST(TraceSettings, RingsHaveAtLeastTheNumberOfTheEnvironment) {
  const TraceSettings settings = parse_trace_settings("/tmp/trace", "8000");
  EXPECT_TRUE(settings.on());
  EXPECT_EQ(settings.directory, "/tmp/trace");
  EXPECT_EQ(settings.agent_records(4096), 8000u);
  EXPECT_EQ(settings.agent_records(10'000), 10'000u);
  EXPECT_EQ(settings.group_records(1000), 2000u);
  EXPECT_EQ(settings.agent_records(0), 0u) << "a recorder that the program has switched off";
}

TEST(TraceSettings, NumbersAreBounded) {
  EXPECT_EQ(parse_trace_settings("d", nullptr).records, TraceSettings::kRecords);
  EXPECT_EQ(parse_trace_settings("d", "many").records, TraceSettings::kRecords);
  EXPECT_EQ(parse_trace_settings("d", "-1").records, TraceSettings::kRecords);
  EXPECT_EQ(parse_trace_settings("d", "0").records, 1u);
  EXPECT_EQ(parse_trace_settings("d", "99999999999").records, TraceSettings::kMostRecords);
}

TEST(TraceSettings, DirectoryThatIsTooLongDoesNotCount) {
  EXPECT_FALSE(parse_trace_settings(std::string(4096, 'd').c_str(), nullptr).on());
  EXPECT_FALSE(parse_trace_settings("", nullptr).on());
}

}  // namespace
}  // namespace gradwire
