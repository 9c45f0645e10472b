#include "gradwire/security/local_peer/user_guard.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/log_lines.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

uid_t other_user() { return ::geteuid() + 1; }

TEST(UserGuard, OwnUserAndThoseOfTheListAreAllowed) {
  UserGuard guard({other_user()});
  EXPECT_TRUE(guard.check(::geteuid(), "a test").ok());
  EXPECT_TRUE(guard.check(other_user(), "a test").ok());
  EXPECT_EQ(guard.check(other_user() + 1, "a test").code(), absl::StatusCode::kPermissionDenied);
}

// Root is a user as any other: the test may run as root, or not.
TEST(UserGuard, WithoutAListOnlyTheOwnUserIsAllowed) {
  UserGuard guard({});
  EXPECT_TRUE(guard.allows(::geteuid()));
  EXPECT_FALSE(guard.allows(other_user()));
  EXPECT_EQ(guard.allows(0), ::geteuid() == 0);
}

TEST(UserGuard, RefusalNamesBothUsersAndTheRemedy) {
  UserGuard guard({});
  const absl::Status status = guard.check(other_user(), "a test");
  EXPECT_TRUE(absl::StrContains(
      status.message(), absl::StrCat("belongs to user ", other_user(), ", expected user ", ::geteuid())))
      << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "SecurityOptions::allowed_users")) << status;
}

TEST(UserGuard, RefusalsAreLoggedOncePerUserAndMinute) {
  ManualClock clock;
  UserGuard guard({}, clock);
  testing::internal::CaptureStderr();
  for (int minute = 0; minute < 3; ++minute) {
    for (int i = 0; i < 5; ++i) {
      EXPECT_FALSE(guard.check(other_user(), "a test").ok());
      EXPECT_FALSE(guard.check(other_user() + 1, "a test").ok());
    }
    clock.advance(absl::Seconds(59));
    EXPECT_FALSE(guard.check(other_user(), "a test").ok());
    clock.advance(absl::Seconds(1));
  }
  EXPECT_EQ(captured_lines("refused a test").size(), 6u);
}

}  // namespace
}  // namespace gradwire::security
