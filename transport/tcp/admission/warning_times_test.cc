#include "gradwire/transport/tcp/admission/warning_times.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(WarningTimes, OneWarningForEachHostAndMinute) {
  WarningTimes times;
  EXPECT_TRUE(times.due("a", kStart));
  EXPECT_FALSE(times.due("a", kStart + WarningTimes::kInterval - absl::Nanoseconds(1)));
  EXPECT_TRUE(times.due("b", kStart));
  EXPECT_TRUE(times.due("a", kStart + WarningTimes::kInterval));
  EXPECT_FALSE(times.due("a", kStart + WarningTimes::kInterval));
}

TEST(WarningTimes, HostsThatDoNotFitShareOneWarning) {
  WarningTimes times;
  for (std::size_t i = 0; i < WarningTimes::kMaxHosts; ++i) EXPECT_TRUE(times.due(absl::StrCat(i), kStart));
  EXPECT_TRUE(times.due("x", kStart));
  EXPECT_FALSE(times.due("y", kStart));
  EXPECT_FALSE(times.due("0", kStart));
  // After a minute the table has room again.
  EXPECT_TRUE(times.due("y", kStart + WarningTimes::kInterval));
  EXPECT_TRUE(times.due("x", kStart + WarningTimes::kInterval));
}

}  // namespace
}  // namespace gradwire::transport
