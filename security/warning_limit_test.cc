#include "gradwire/security/warning_limit.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(WarningLimit, OneForEachSubjectAndMinute) {
  WarningLimit limit;
  EXPECT_TRUE(limit.allows("a", kStart));
  EXPECT_FALSE(limit.allows("a", kStart + WarningLimit::kInterval - absl::Nanoseconds(1)));
  EXPECT_TRUE(limit.allows("b", kStart));
  EXPECT_TRUE(limit.allows("a", kStart + WarningLimit::kInterval));
  EXPECT_FALSE(limit.allows("a", kStart + WarningLimit::kInterval));
}

TEST(WarningLimit, SubjectsThatDoNotFitShareOne) {
  WarningLimit limit;
  for (std::size_t i = 0; i < WarningLimit::kMaxSubjects; ++i)
    EXPECT_TRUE(limit.allows(absl::StrCat(i), kStart));
  EXPECT_TRUE(limit.allows("x", kStart));
  EXPECT_FALSE(limit.allows("y", kStart));
  EXPECT_FALSE(limit.allows("0", kStart));
  // After a minute the table has room again.
  EXPECT_TRUE(limit.allows("y", kStart + WarningLimit::kInterval));
  EXPECT_TRUE(limit.allows("x", kStart + WarningLimit::kInterval));
}

}  // namespace
}  // namespace gradwire::security
