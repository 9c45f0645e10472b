#include "gradwire/base/polling/answer_wait.h"

#include <gtest/gtest.h>

#include <optional>

namespace gradwire {
namespace {

constexpr int64_t kMicrosecond = 1'000;
constexpr int64_t kMillisecond = 1'000'000;

int64_t clock_ns = 0;

class AnswerWaitTest : public ::testing::Test {
 protected:
  AnswerWaitTest() { clock_ns = kMillisecond; }

  // Waits for an answer that arrives after `nanoseconds`. Returns for how long the thread polled.
  int64_t wait(int64_t nanoseconds, const WaitPolicy& policy = {}) {
    AnswerWait wait(policy, {budget_, demand_, pauses_, times_}, [] { return clock_ns; });
    const int64_t begin = clock_ns;
    bool answered = false;
    while (!answered) {
      const Rest rest = wait.rest();
      if (rest == Rest::kSleep) break;
      clock_ns += rest == Rest::kPause ? 100 : yield_;
      if (rest == Rest::kYield) wait.yielded();
      answered = clock_ns - begin >= nanoseconds;
    }
    wait.end(answered);
    const int64_t polled = clock_ns - begin;
    clock_ns += 100 * kMillisecond;
    return polled;
  }

  int64_t yield_ = kMicrosecond;
  PollBudget budget_{0.1};
  CoreContention demand_;
  PauseTuner pauses_;
  AnswerTimes times_;
};

TEST_F(AnswerWaitTest, PolicyOfZeroSleepsAtOnce) {
  EXPECT_EQ(wait(kMicrosecond, {absl::ZeroDuration(), absl::ZeroDuration()}), 0);
}

TEST_F(AnswerWaitTest, DeadlineThatHasPassedSleepsAtOnce) {
  EXPECT_EQ(wait(kMicrosecond, {-absl::Microseconds(1), -absl::Microseconds(1)}), 0);
}

TEST_F(AnswerWaitTest, AnswerOfACalleeThatSleptIsAwaitedByPolling) {
  EXPECT_LE(wait(400 * kMicrosecond), 402 * kMicrosecond);
  EXPECT_EQ(times_.extra(), AnswerTimes::kMaxExtra);
}

TEST_F(AnswerWaitTest, AnswersThatTakeLongShortenThePolling) {
  EXPECT_NEAR(static_cast<double>(wait(5 * kMillisecond)), 653e3, 5e3);
  for (int i = 0; i < 10; ++i) (void)wait(5 * kMillisecond);
  EXPECT_LE(wait(5 * kMillisecond), 220 * kMicrosecond);
  // Answers in time lengthen it again.
  for (int i = 0; i < 10; ++i) (void)wait(200 * kMicrosecond);
  EXPECT_EQ(times_.extra(), AnswerTimes::kMaxExtra);
}

TEST_F(AnswerWaitTest, EmptyBudgetLeavesThePolicy) {
  (void)budget_.left(clock_ns);
  budget_.spend(1'000 * kMillisecond);
  EXPECT_NEAR(static_cast<double>(wait(kMillisecond)), 153e3, 5e3);
}

TEST_F(AnswerWaitTest, ExtraTimeIsChargedAndTheRestIsNot) {
  const int64_t before = budget_.left(clock_ns);
  (void)wait(100 * kMicrosecond);
  EXPECT_EQ(budget_.left(kMillisecond), before);
  (void)wait(400 * kMicrosecond);
  EXPECT_NEAR(static_cast<double>(before - budget_.left(kMillisecond)), 247e3, 5e3);
}

TEST_F(AnswerWaitTest, BusyCoreIsGivenUp) {
  yield_ = 3 * kMillisecond;
  EXPECT_LE(wait(10 * kMillisecond), 4 * kMillisecond);
  clock_ns -= 99 * kMillisecond;
  EXPECT_LE(wait(10 * kMillisecond), 31 * kMicrosecond);
}

// A yield could run a thread that computes.
TEST_F(AnswerWaitTest, AnswersThatComeSoonAreAwaitedWithoutYields) {
  yield_ = kMillisecond;
  for (int i = 0; i < 100; ++i) EXPECT_LE(wait(29 * kMicrosecond), 30 * kMicrosecond) << i;
  // The time of the pauses is part of that of the policy.
  yield_ = kMicrosecond;
  EXPECT_NEAR(static_cast<double>(wait(kMillisecond)), 653e3, 5e3);
}

TEST_F(AnswerWaitTest, AnswersOfThisCoreAreAwaitedWithYields) {
  // The callee answers during the first yield.
  yield_ = 5 * kMicrosecond;
  for (int i = 0; i < 100; ++i) (void)wait(PauseTuner::kLong + kMicrosecond);
  int64_t polled = 0;
  for (int i = 0; i < 100; ++i) polled += wait(5 * kMicrosecond);
  EXPECT_LE(polled, 100 * 10 * kMicrosecond);
}

// Where answers come soon, nobody shares the core on purpose. So the first yield that runs a thread for long
// is the last one.
TEST_F(AnswerWaitTest, CoreOnWhichAnotherThreadComputesIsGivenUpSoonerIfAnswersComeSoon) {
  for (int i = 0; i < 10; ++i) (void)wait(15 * kMicrosecond);
  yield_ = 300 * kMicrosecond;
  EXPECT_GE(wait(100 * kMicrosecond), 300 * kMicrosecond);
  clock_ns -= 99 * kMillisecond;
  EXPECT_LE(wait(100 * kMicrosecond), 31 * kMicrosecond);
}

TEST_F(AnswerWaitTest, ShortPolicyAllowsNoLongPauses) {
  for (int i = 0; i < 10; ++i) (void)wait(2 * kMicrosecond);
  EXPECT_LE(wait(kMillisecond, {absl::Microseconds(1), absl::ZeroDuration()}), 2 * kMicrosecond);
}

TEST_F(AnswerWaitTest, FoundMessageRenewsTheWait) {
  AnswerWait wait({}, {budget_, demand_, pauses_, times_}, [] { return clock_ns; });
  for (int round = 0; round < 10; ++round) {
    const int64_t begin = clock_ns;
    while (clock_ns - begin < 140 * kMicrosecond) {
      ASSERT_NE(wait.rest(), Rest::kSleep);
      clock_ns += kMicrosecond;
    }
    wait.renew();
  }
}

}  // namespace
}  // namespace gradwire
