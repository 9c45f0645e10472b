#include "gradwire/rpc/limits/limit_refusals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gradwire/base/testing/log_lines.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

TEST(LimitRefusals, NamesLimitOptionCallerAndCallee) {
  LimitRefusals refusals;
  const absl::Status status =
      refusals.refuse({"a", 0, 1}, {"b", 1, 2}, {"calls in flight", "max_calls", 5}, absl::UnixEpoch());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"worker \"a\"", "5", "calls in flight", "worker \"b\"", "caller_limits.max_calls"})
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(LimitRefusals, CountsAllAndLogsOneForEachCallerAndMinute) {
  LimitRefusals refusals;
  const Worker a{"a", 0, 1}, b{"b", 1, 2}, at{"c", 2, 3};
  const CallerLimit limit{"calls in flight", "max_calls", 5};
  absl::Time now = absl::UnixEpoch();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) (void)refusals.refuse(a, at, limit, now += absl::Milliseconds(1));
  (void)refusals.refuse(b, at, limit, now);
  (void)refusals.refuse(a, at, limit, now + absl::Minutes(1));
  EXPECT_EQ(refusals.count(), 102u);
  EXPECT_EQ(captured_lines("too many calls in flight").size(), 3u);
}

}  // namespace
}  // namespace gradwire::rpc
