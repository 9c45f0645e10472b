// Problems of whole processes and hosts, in a job of several processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/diagnosis/diagnosis.h"
#include "gradwire/tests/diagnosis/job.h"
#include "gradwire/tests/diagnosis/member_process.h"

namespace gradwire::tests {
namespace {

using inspect::Finding;
using ::testing::HasSubstr;

constexpr char kMember[] = "tests/diagnosis/member";
constexpr char kFastClock[] = "LD_PRELOAD=tests/diagnosis/libfast_clock.so";

class Processes : public ::testing::Test {
 protected:
  ~Processes() override { unlink(store_.c_str()); }

  const std::string store_ = new_path("store");
  const std::string place_ = "file://" + store_;
};

TEST_F(Processes, APausedProcess) {
  const MemberProcess a({kMember, store_, "a", "0", "2"}), b({kMember, store_, "b", "1", "2"});
  Diagnosis diagnosis(place_, short_thresholds(), absl::Seconds(1));
  diagnosis.expect_healthy(2);
  b.send(SIGSTOP);
  EXPECT_EQ(
      diagnosis.expect(Finding::Kind::kUnresponsive, {"b"}),
      absl::StrCat("paused worker: \"b\" does not answer, because its process ", b.pid(), " is stopped"));
  b.send(SIGCONT);
  diagnosis.expect_healthy(2);
}

TEST_F(Processes, AClockThatIsOff) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "ThreadSanitizer replaces the functions of the clock, so the preloaded ones are not called";
#endif
#endif
  const MemberProcess a({kMember, store_, "a", "0", "3"}), b({kMember, store_, "b", "1", "3"}, {kFastClock}),
      c({kMember, store_, "c", "2", "3"});
  Diagnosis diagnosis(place_);
  EXPECT_THAT(
      diagnosis.expect(Finding::Kind::kWrongClock, {"b"}),
      AllOf(HasSubstr("the wall clock of \"b\" on host "), HasSubstr(" is 1 h 30 min ahead of the other")));
}

TEST_F(Processes, ClocksThatAreRight) {
  const MemberProcess a({kMember, store_, "a", "0", "3"}), b({kMember, store_, "b", "1", "3"}),
      c({kMember, store_, "c", "2", "3"});
  Diagnosis(place_).expect_healthy(3);
}

}  // namespace
}  // namespace gradwire::tests
