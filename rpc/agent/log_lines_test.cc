#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "gradwire/base/log/log.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/testing/group.h"

// The lines in the log at GRADWIRE_LOG_LEVEL=info, with which this test runs.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

int64_t add_unlogged(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add_unlogged)

int64_t write_line(int64_t value) {
  log(LogLevel::kInfo, "in the handler");
  return value;
}
GRADWIRE_RPC(write_line)

std::string log_of_a_group_with(int calls) {
  ::testing::internal::CaptureStderr();
  {
    testing::Group group(2);
    for (int i = 0; i < calls; ++i) EXPECT_EQ(group[0]->rpc_sync<&add_unlogged>("worker1", i, 1), i + 1);
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(LogLines, InfoReportsChangesOfTheGroup) {
  const std::string log = log_of_a_group_with(1);
  EXPECT_THAT(log, HasSubstr("worker \"worker0\" (id 0) joined the group: 2 members"));
  EXPECT_THAT(log, HasSubstr("worker \"worker0\" is connected to worker \"worker1\" over "));
  EXPECT_THAT(log, HasSubstr("worker \"worker0\" shuts down: "));
}

TEST(LogLines, LineOfAHandlerNamesItsWorker) {
  ::testing::internal::CaptureStderr();
  {
    testing::Group group(2);
    EXPECT_EQ(group[0]->rpc_sync<&write_line>("worker1", 7), 7);
    EXPECT_EQ(group[1]->rpc_sync<&write_line>("worker0", 8), 8);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr(" gradwire[worker1]: in the handler\n"));
  EXPECT_THAT(log, HasSubstr(" gradwire[worker0]: in the handler\n"));
}

TEST(LogLines, InfoHasNoLineForACall) {
  constexpr int kCalls = 500;
  const std::string log = log_of_a_group_with(kCalls);
  EXPECT_LT(std::count(log.begin(), log.end(), '\n'), kCalls / 5) << log;
}

}  // namespace
}  // namespace gradwire::rpc
