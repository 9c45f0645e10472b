#include "gradwire/base/testing/test_needs.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/status/status.h"

namespace gradwire::test_needs {
namespace {

class TestNeeds : public ::testing::Test {
 protected:
  TestNeeds() { unsetenv("GRADWIRE_TEST_MUST_HAVE"); }
  ~TestNeeds() override { unsetenv("GRADWIRE_TEST_MUST_HAVE"); }
};

// Sets `went_on` if the line after the macro is reached. It is a separate function because both outcomes
// return from it.
void needs_a_unicorn(absl::Status status, bool& went_on) {
  GRADWIRE_NEEDS("unicorn", status);
  went_on = true;
}

TEST_F(TestNeeds, PresentResourceLetsTheTestContinue) {
  bool went_on = false;
  needs_a_unicorn(absl::OkStatus(), went_on);
  EXPECT_TRUE(went_on);
}

TEST_F(TestNeeds, MissingResourceSkipsTheTestWithTheReason) {
  bool went_on = false;
  ::testing::TestPartResultArray results;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    needs_a_unicorn(absl::NotFoundError("no unicorn was found"), went_on);
  }
  EXPECT_FALSE(went_on);
  ASSERT_EQ(results.size(), 1);
  EXPECT_TRUE(results.GetTestPartResult(0).skipped());
  EXPECT_NE(std::string(results.GetTestPartResult(0).message()).find("needs unicorn: no unicorn was found"),
            std::string::npos);
}

TEST_F(TestNeeds, MissingResourceThatTheMachineMustHaveFailsTheTest) {
  setenv("GRADWIRE_TEST_MUST_HAVE", "etcd,unicorn", 1);
  bool went_on = false;
  ::testing::TestPartResultArray results;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    needs_a_unicorn(absl::NotFoundError("no unicorn was found"), went_on);
  }
  EXPECT_FALSE(went_on);
  ASSERT_EQ(results.size(), 1);
  EXPECT_TRUE(results.GetTestPartResult(0).fatally_failed());
}

TEST_F(TestNeeds, OnlyWholeNamesCount) {
  setenv("GRADWIRE_TEST_MUST_HAVE", "etcd,unicorns", 1);
  EXPECT_FALSE(must_have("unicorn"));
  EXPECT_TRUE(must_have("etcd"));
}

}  // namespace
}  // namespace gradwire::test_needs
