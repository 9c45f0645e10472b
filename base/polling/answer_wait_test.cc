#include "gradwire/base/polling/answer_wait.h"

#include <gtest/gtest.h>

#include <optional>

namespace gradwire {
namespace {

constexpr int64_t kMicro = 1'000;
constexpr int64_t kMilli = 1'000'000;

int64_t now_ns = 0;

class AnswerWaitTest : public ::testing::Test {
 protected:
  AnswerWaitTest() { now_ns = kMilli; }

  // Waits for an answer that arrives after `nanoseconds`. Returns for how long the thread polled.
  int64_t wait(int64_t nanoseconds, const WaitPolicy& policy = {}) {
    AnswerWait wait(policy, {budget_, demand_, pauses_, times_}, [] { return now_ns; });
    const int64_t begin = now_ns;
    bool answered = false;
    while (!answered) {
      const Rest rest = wait.rest();
      if (rest == Rest::kSleep) break;
      now_ns += rest == Rest::kPause ? 100 : yield_;
      if (rest == Rest::kYield) wait.yielded();
      answered = now_ns - begin >= nanoseconds;
    }
    wait.end(answered);
    const int64_t polled = now_ns - begin;
    now_ns += 100 * kMilli;
    return polled;
  }

  int64_t yield_ = kMicro;
  PollBudget budget_{0.1};
  CoreDemand demand_;
  PauseLength pauses_;
  AnswerTimes times_;
};

TEST_F(AnswerWaitTest, PolicyOfZeroSleepsAtOnce) {
  EXPECT_EQ(wait(kMicro, {absl::ZeroDuration(), absl::ZeroDuration()}), 0);
}

TEST_F(AnswerWaitTest, DeadlineThatHasPassedSleepsAtOnce) {
  EXPECT_EQ(wait(kMicro, {-absl::Microseconds(1), -absl::Microseconds(1)}), 0);
}

TEST_F(AnswerWaitTest, AnswerOfACalleeThatSleptIsAwaitedByPolling) {
  EXPECT_LE(wait(400 * kMicro), 402 * kMicro);
  EXPECT_EQ(times_.extra(), AnswerTimes::kMaxExtra);
}

TEST_F(AnswerWaitTest, AnswersThatTakeLongShortenThePolling) {
  EXPECT_NEAR(static_cast<double>(wait(5 * kMilli)), 653e3, 5e3);
  for (int i = 0; i < 10; ++i) (void)wait(5 * kMilli);
  EXPECT_LE(wait(5 * kMilli), 220 * kMicro);
  // Answers in time lengthen it again.
  for (int i = 0; i < 10; ++i) (void)wait(200 * kMicro);
  EXPECT_EQ(times_.extra(), AnswerTimes::kMaxExtra);
}

TEST_F(AnswerWaitTest, EmptyBudgetLeavesThePolicy) {
  (void)budget_.left(now_ns);
  budget_.spend(1'000 * kMilli);
  EXPECT_NEAR(static_cast<double>(wait(kMilli)), 153e3, 5e3);
}

TEST_F(AnswerWaitTest, ExtraTimeIsChargedAndTheRestIsNot) {
  const int64_t before = budget_.left(now_ns);
  (void)wait(100 * kMicro);
  EXPECT_EQ(budget_.left(kMilli), before);
  (void)wait(400 * kMicro);
  EXPECT_NEAR(static_cast<double>(before - budget_.left(kMilli)), 247e3, 5e3);
}

TEST_F(AnswerWaitTest, BusyCoreIsGivenUp) {
  yield_ = 3 * kMilli;
  EXPECT_LE(wait(10 * kMilli), 4 * kMilli);
  now_ns -= 99 * kMilli;
  EXPECT_LE(wait(10 * kMilli), 31 * kMicro);
}

// A yield could run a thread that computes.
TEST_F(AnswerWaitTest, AnswersThatComeSoonAreAwaitedWithoutYields) {
  yield_ = kMilli;
  for (int i = 0; i < 100; ++i) EXPECT_LE(wait(29 * kMicro), 30 * kMicro) << i;
  // The time of the pauses is part of that of the policy.
  yield_ = kMicro;
  EXPECT_NEAR(static_cast<double>(wait(kMilli)), 653e3, 5e3);
}

TEST_F(AnswerWaitTest, AnswersOfThisCoreAreAwaitedWithYields) {
  // The callee answers during the first yield.
  yield_ = 5 * kMicro;
  for (int i = 0; i < 100; ++i) (void)wait(PauseLength::kLong + kMicro);
  int64_t polled = 0;
  for (int i = 0; i < 100; ++i) polled += wait(5 * kMicro);
  EXPECT_LE(polled, 100 * 10 * kMicro);
}

// Where answers come soon, nobody shares the core on purpose. So the first yield that runs a thread for long
// is the last one.
TEST_F(AnswerWaitTest, CoreOnWhichAnotherThreadComputesIsGivenUpSoonerIfAnswersComeSoon) {
  for (int i = 0; i < 10; ++i) (void)wait(15 * kMicro);
  yield_ = 300 * kMicro;
  EXPECT_GE(wait(100 * kMicro), 300 * kMicro);
  now_ns -= 99 * kMilli;
  EXPECT_LE(wait(100 * kMicro), 31 * kMicro);
}

TEST_F(AnswerWaitTest, ShortPolicyAllowsNoLongPauses) {
  for (int i = 0; i < 10; ++i) (void)wait(2 * kMicro);
  EXPECT_LE(wait(kMilli, {absl::Microseconds(1), absl::ZeroDuration()}), 2 * kMicro);
}

TEST_F(AnswerWaitTest, FoundMessageRenewsTheWait) {
  AnswerWait wait({}, {budget_, demand_, pauses_, times_}, [] { return now_ns; });
  for (int round = 0; round < 10; ++round) {
    const int64_t begin = now_ns;
    while (now_ns - begin < 140 * kMicro) {
      ASSERT_NE(wait.rest(), Rest::kSleep);
      now_ns += kMicro;
    }
    wait.renew();
  }
}

}  // namespace
}  // namespace gradwire
