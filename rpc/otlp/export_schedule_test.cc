#include "gradwire/rpc/otlp/export_schedule.h"

#include <gtest/gtest.h>

namespace gradwire::rpc {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(10);

TEST(ExportSchedule, KeepsTheIntervalWhileExportsSucceed) {
  ExportSchedule schedule(kInterval);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(schedule.after(true, 0.5), kInterval);
}

TEST(ExportSchedule, FirstExportIsAtARandomTimeOfTheInterval) {
  const ExportSchedule schedule(kInterval);
  EXPECT_EQ(schedule.first(0), absl::ZeroDuration());
  EXPECT_EQ(schedule.first(0.25), kInterval / 4);
}

TEST(ExportSchedule, DoublesThePauseUpToTheLongestAndReturnsToTheInterval) {
  ExportSchedule schedule(kInterval);
  EXPECT_EQ(schedule.after(false, 0), absl::Seconds(20));
  EXPECT_EQ(schedule.after(false, 0), absl::Seconds(40));
  EXPECT_EQ(schedule.after(false, 0), absl::Seconds(80));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(schedule.after(false, 0), ExportSchedule::kLongestPause);
  EXPECT_EQ(schedule.after(true, 0), kInterval);
  EXPECT_EQ(schedule.after(false, 0), absl::Seconds(20));
}

TEST(ExportSchedule, SpreadsTheWorkersOfAJob) {
  ExportSchedule schedule(kInterval);
  EXPECT_EQ(schedule.after(false, 0.5), absl::Seconds(20) * 0.875);
  EXPECT_EQ(schedule.after(false, 1), absl::Seconds(30));
}

TEST(ExportSchedule, NeverExportsMoreOftenThanTheInterval) {
  ExportSchedule schedule(absl::Hours(1));
  EXPECT_EQ(schedule.after(false, 0.9), absl::Hours(1));
}

}  // namespace
}  // namespace gradwire::rpc
