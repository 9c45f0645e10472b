#include "gradwire/rpc/membership/shutdown_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "gradwire/base/manual_clock.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using UnfinishedKind = ShutdownWait::Unfinished::Kind;

TEST(ShutdownWait, ReportNamesFunctionCallerAndSinceWhenOldestFirst) {
  ManualClock clock;
  ShutdownWait wait("a", clock);
  const absl::Time began = clock.now();
  clock.advance(absl::Seconds(35));
  EXPECT_EQ(
      wait.report({{UnfinishedKind::kCalled, "train", "c", began + absl::Seconds(30)},
                   {UnfinishedKind::kServed, "push", "b", began - absl::Seconds(12)},
                   {UnfinishedKind::kMember, "", "d", began + absl::Seconds(34)},
                   {UnfinishedKind::kSilent, "", "e", began + absl::Seconds(34)},
                   {UnfinishedKind::kOther, "messages about references", "", began + absl::Seconds(35)}}),
      "graceful shutdown of worker \"a\" waits for: "
      "\"push\", called by worker \"b\" (47s); the answer of worker \"c\" to \"train\" (5s); "
      "worker \"d\", which has not called shutdown or still has calls under way (1s); "
      "worker \"e\", which does not answer (1s); "
      "messages about references (0)");
}

TEST(ShutdownWait, EqualItemsBecomeOneWithTheirNumberAndTheLongestTime) {
  ManualClock clock;
  ShutdownWait wait("a", clock);
  const absl::Time began = clock.now();
  clock.advance(absl::Seconds(20));
  EXPECT_EQ(wait.list({{UnfinishedKind::kStreamServed, "generate", "b", began + absl::Seconds(5)},
                       {UnfinishedKind::kServed, "push", "c", began + absl::Seconds(8)},
                       {UnfinishedKind::kStreamServed, "generate", "b", began + absl::Seconds(1)},
                       {UnfinishedKind::kStreamRead, "load", "c", began + absl::Seconds(18)},
                       {UnfinishedKind::kStreamServed, "generate", "b", began + absl::Seconds(7)},
                       {UnfinishedKind::kServed, "push", "b", began + absl::Seconds(9)}}),
            "the stream of \"generate\", which worker \"b\" reads (19s, 3 times); "
            "\"push\", called by worker \"c\" (12s); \"push\", called by worker \"b\" (11s); "
            "items of the stream of \"load\" on worker \"c\" (2s)");
}

TEST(ShutdownWait, LongListIsCutAfterTheOldest) {
  ManualClock clock;
  ShutdownWait wait("a", clock);
  std::vector<ShutdownWait::Unfinished> calls;
  for (int i = 0; i < 100; ++i) {
    calls.push_back({UnfinishedKind::kServed, absl::StrCat("f", i), "b", clock.now() - absl::Seconds(i)});
  }
  const std::string list = wait.list(calls);
  EXPECT_THAT(list, HasSubstr("\"f99\""));
  EXPECT_THAT(list, HasSubstr("\"f92\""));
  EXPECT_THAT(list, Not(HasSubstr("\"f91\"")));
  EXPECT_THAT(list, HasSubstr("and 92 more"));
}

}  // namespace
}  // namespace gradwire::rpc
