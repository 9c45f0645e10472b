#include "gradwire/rpc/mesh/mesh_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MeshError, NamesThoseWhoDidNotAnswer) {
  const absl::Status status = failure_of_members(
      "the call of \"f\"", 8, absl::Seconds(5),
      {{"w3", absl::DeadlineExceededError("late")}, {"w6", absl::DeadlineExceededError("late")}});
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(),
            "the call of \"f\" failed: 2 of 8 members did not answer in 5s: \"w3\", \"w6\"");
  EXPECT_EQ(worker_of(status), "");
}

TEST(MeshError, GivesEveryOtherMemberItsOwnError) {
  const absl::Status status =
      failure_of_members("the call of \"f\"", 4, absl::Seconds(1),
                         {{"w0", absl::UnavailableError("worker \"w0\" was declared dead")},
                          {"w1", absl::DeadlineExceededError("late")},
                          {"w3", absl::UnknownError("on purpose")}});
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(),
            "the call of \"f\" failed: 1 of 4 members did not answer in 1s: \"w1\"; 2 of 4 members failed: "
            "\"w0\": worker \"w0\" was declared dead; \"w3\": on purpose");
}

TEST(MeshError, SingleFailureKeepsItsWorker) {
  const absl::Status status =
      failure_of_members("the broadcast", 2, absl::Seconds(1), {{"w1", absl::NotFoundError("unknown")}});
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(worker_of(status), "w1");
}

TEST(MeshError, NoFailureIsOk) {
  EXPECT_TRUE(failure_of_members("the call of \"f\"", 3, absl::Seconds(1), {}).ok());
}

TEST(MeshError, MessageOfAThousandFailuresIsBounded) {
  std::vector<MemberFailure> failures;
  for (int i = 0; i < 1000; ++i) {
    failures.push_back({absl::StrCat("late", i), absl::DeadlineExceededError("late")});
    failures.push_back({absl::StrCat("w", i), absl::UnknownError("on purpose")});
  }
  const absl::Status status = failure_of_members("the call", 2000, absl::Seconds(1), failures);
  EXPECT_THAT(status.message(), HasSubstr("\"late63\" and 936 more"));
  EXPECT_THAT(status.message(), Not(HasSubstr("\"late64\"")));
  EXPECT_THAT(status.message(), EndsWith("\"w15\": on purpose and 984 more"));
}

}  // namespace
}  // namespace gradwire::rpc
