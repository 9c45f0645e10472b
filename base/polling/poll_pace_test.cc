#include "gradwire/base/polling/poll_pace.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

constexpr int64_t kMicro = 1'000;
constexpr int64_t kMilli = 1'000'000;

// The time of the tests.
int64_t now_ns = 0;

// A thread that waits, on a machine whose yields and wake-ups take a given time.
class Waiter {
 public:
  explicit Waiter(const WaitPolicy& policy = {})
      : budget_(policy.share), pace_(policy, budget_, contention_, [] { return now_ns; }) {
    now_ns = kMilli;
  }

  int64_t wake_up = 30 * kMicro;
  int64_t yield = kMicro;
  // How long the poll takes that finds a message.
  int64_t handling = 0;

  // Waits for a message that arrives at `arrival`; then `source` has sent it. Returns how late the thread
  // finds it.
  int64_t wait_for(int64_t arrival, uint64_t source = 1) {
    while (now_ns < arrival) {
      switch (pace_.rest()) {
        case Rest::kPause:
          now_ns += 100;
          polled_ += 100;
          break;
        case Rest::kYield:
          now_ns += yield;
          polled_ += yield;
          pace_.yielded();
          break;
        case Rest::kSleep:
          // A message wakes the thread early.
          ++sleeps_;
          if (pace_.sleep_until() != PollPace::kForever) ++timed_sleeps_;
          now_ns = std::max(now_ns, std::min(pace_.sleep_until(), arrival)) + wake_up;
          pace_.woke();
      }
    }
    const int64_t late = now_ns - arrival;
    now_ns += handling;
    pace_.found(source);
    return late;
  }
  // Waits for `count` messages, one every `interval`. Returns how late the last one is found.
  int64_t wait_for_each(int64_t interval, int count) {
    int64_t late = 0;
    for (int i = 0; i < count; ++i) {
      late = wait_for(now_ns - late + interval);
    }
    return late;
  }
  // Measures the machine: the first sleeps of a silence do so.
  void settle() { wait_for(now_ns + 100 * kMilli); }

  PollPace& poll_pace() { return pace_; }
  int64_t polled() { return std::exchange(polled_, 0); }
  int timed_sleeps() { return std::exchange(timed_sleeps_, 0); }
  int sleeps() { return std::exchange(sleeps_, 0); }

 private:
  PollBudget budget_;
  CoreContention contention_;
  PollPace pace_;
  int64_t polled_ = 0;
  int timed_sleeps_ = 0;
  int sleeps_ = 0;
};

// Rests until the thread should sleep.
void sleep(PollPace& poll_pace) {
  for (Rest rest = poll_pace.rest(); rest != Rest::kSleep; rest = poll_pace.rest()) {
    now_ns += kMicro;
    if (rest == Rest::kYield) poll_pace.yielded();
  }
}

// A thread that may hardly poll beyond the time of a wake-up.
struct SmallShare {
  SmallShare() { now_ns = kMilli; }

  PollBudget budget{0.001};
  CoreContention contention;
  PollPace poll_pace{WaitPolicy(), budget, contention, [] { return now_ns; }};
};

TEST(PollPace, PolicyOfZeroSleepsAtOnce) {
  now_ns = kMilli;
  PollBudget budget(1);
  CoreContention contention;
  PollPace poll_pace({absl::ZeroDuration(), absl::ZeroDuration()}, budget, contention, [] { return now_ns; });
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(poll_pace.rest(), Rest::kSleep);
    ASSERT_EQ(poll_pace.sleep_until(), PollPace::kForever);
    poll_pace.found(1);
  }
}

TEST(PollPace, InfiniteTimesAndTheWholeCoreNeverSleepSoon) {
  WaitPolicy policy{absl::ZeroDuration(), absl::InfiniteDuration()};
  policy.share = 1;
  Waiter waiter(policy);
  EXPECT_LE(waiter.wait_for(now_ns + 900 * kMilli), kMicro);
  EXPECT_EQ(waiter.sleeps(), 0);
}

TEST(PollPace, ShortSilenceIsPolledThrough) {
  Waiter waiter;
  waiter.settle();
  waiter.sleeps();
  for (int i = 0; i < 100; ++i) EXPECT_LE(waiter.wait_for(now_ns + 2 * kMicro), 100);
  for (int i = 0; i < 100; ++i) EXPECT_LE(waiter.wait_for(now_ns + 30 * kMicro), kMicro);
  EXPECT_EQ(waiter.sleeps(), 0);
}

// A yield could run a thread that computes.
TEST(PollPace, MessagesThatFollowSoonAreAwaitedWithoutYields) {
  Waiter waiter;
  waiter.settle();
  waiter.yield = kMilli;
  for (int i = 0; i < 100; ++i) EXPECT_LE(waiter.wait_for(now_ns + 15 * kMicro), kMicro) << i;
  // Messages that come later teach the thread to yield again.
  waiter.yield = kMicro;
  for (int i = 0; i < 10; ++i) waiter.wait_for(now_ns + 50 * kMicro);
  waiter.yield = 100 * kMicro;
  EXPECT_GE(waiter.wait_for(now_ns + 15 * kMicro), 80 * kMicro);
}

TEST(PollPace, CoreOnWhichAnotherThreadComputesIsGivenUpSoonerIfMessagesFollowSoon) {
  Waiter waiter;
  waiter.settle();
  for (int i = 0; i < 20; ++i) waiter.wait_for(now_ns + 15 * kMicro);
  waiter.yield = 300 * kMicro;
  EXPECT_GE(waiter.wait_for(now_ns + 100 * kMicro), 200 * kMicro);
  // The thread sleeps after the pauses, and the message wakes it.
  waiter.sleeps();
  EXPECT_LE(waiter.wait_for(now_ns + 100 * kMicro), waiter.wake_up);
  EXPECT_EQ(waiter.sleeps(), 1);
}

// Such as the messages of a training step, which follow one another.
TEST(PollPace, ThreadThatWorksMayPollAsLongAsItWorks) {
  for (const int64_t work : {2 * kMicro, 60 * kMicro}) {
    Waiter waiter;
    waiter.settle();
    waiter.sleeps();
    for (int i = 0; i < 10'000; ++i) {
      waiter.wait_for(now_ns + (i % 2 == 0 ? 50 : 70) * kMicro);
      now_ns += work;
    }
    if (work > 50 * kMicro) {
      EXPECT_EQ(waiter.sleeps(), 0);
    } else {
      // The polling would cost more than the share and the work allow.
      EXPECT_GT(waiter.sleeps(), 5'000);
    }
  }
}

TEST(PollPace, FirstSleepsMeasureHowLongAWakeUpTakes) {
  Waiter waiter;
  waiter.wake_up = 60 * kMicro;
  EXPECT_EQ(waiter.poll_pace().free_nanoseconds(), 150 * kMicro);
  waiter.settle();
  EXPECT_EQ(waiter.timed_sleeps(), 4);
  EXPECT_EQ(waiter.poll_pace().free_nanoseconds(), 90 * kMicro);
  waiter.settle();
  EXPECT_EQ(waiter.timed_sleeps(), 0);
}

TEST(PollPace, RegularMessageIsAwaitedByPolling) {
  for (const int64_t interval : {200 * kMicro, 500 * kMicro, 2 * kMilli, 10 * kMilli}) {
    Waiter waiter;
    waiter.settle();
    waiter.wait_for_each(interval, 12);
    for (int i = 0; i < 5; ++i) EXPECT_LE(waiter.wait_for_each(interval, 1), 2 * kMicro) << interval;
  }
}

TEST(PollPace, RegularMessageCostsLittleProcessorTime) {
  for (const int64_t interval : {500 * kMicro, 2 * kMilli, 10 * kMilli}) {
    Waiter waiter;
    waiter.settle();
    waiter.wait_for_each(interval, 10);
    waiter.polled();
    waiter.wait_for_each(interval, 100);
    EXPECT_LE(waiter.polled() / 100, 60 * kMicro) << interval;
  }
}

TEST(PollPace, MessageThatIsLateIsLeftToTheWakeUp) {
  Waiter waiter;
  waiter.settle();
  waiter.wait_for_each(2 * kMilli, 20);
  waiter.polled();
  EXPECT_EQ(waiter.wait_for(now_ns + 40 * kMilli), waiter.wake_up);
  EXPECT_LE(waiter.polled(), 200 * kMicro);
}

TEST(PollPace, IrregularSilencesStayWithinTheShare) {
  for (const double share : {0.0, 0.1, 0.5}) {
    WaitPolicy policy;
    policy.share = share;
    Waiter waiter(policy);
    waiter.settle();
    const int64_t begin = now_ns;
    // Uses up what was saved, then goes on for long.
    for (int i = 0; i < 20'000; ++i) waiter.wait_for(now_ns + (1 + i % 7) * 130 * kMicro);
    // Each silence begins with pauses, and the last yield of a silence may be a little late.
    const int64_t free = 20'000 * (waiter.poll_pace().free_nanoseconds() + 5 * kMicro);
    const auto passed = static_cast<double>(now_ns - begin);
    EXPECT_LE(static_cast<double>(waiter.polled() - free), share * passed + 1.1 * share * 1e9) << share;
  }
}

TEST(PollPace, IdleThreadDoesNotPoll) {
  Waiter waiter;
  waiter.settle();
  waiter.polled();
  waiter.wait_for(now_ns + 10'000 * kMilli);
  EXPECT_LE(waiter.polled(), 160 * kMicro);
}

TEST(PollPace, BusyCoreIsGivenUp) {
  Waiter waiter;
  waiter.settle();
  waiter.polled();
  // Another thread computes on the core, so a yield takes a whole time slice.
  waiter.yield = 3 * kMilli;
  waiter.wait_for(now_ns + kMilli);
  EXPECT_GE(waiter.polled(), 3 * kMilli);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(waiter.wait_for(now_ns + kMilli), waiter.wake_up);
    EXPECT_LE(waiter.polled(), 5 * kMicro);
  }
  // After a while it tries again.
  waiter.yield = kMicro;
  waiter.wait_for(now_ns + 20 * kMilli);
  EXPECT_LE(waiter.wait_for(now_ns + 30 * kMicro), kMicro);
}

TEST(PollPace, CoreThatTheSenderHandsOverIsKept) {
  WaitPolicy policy;
  policy.share = 0.001;
  Waiter waiter(policy);
  waiter.settle();
  // The sender computes on the same core, and each yield ends when it has sent its next message.
  for (int i = 0; i < 1'000; ++i) {
    const int64_t arrival = now_ns + (i % 3 == 0 ? 700 : 500) * kMicro;
    waiter.yield = arrival - now_ns;
    // At first the thread pauses for longer.
    EXPECT_LE(waiter.wait_for(arrival), (i == 0 ? 35 : 10) * kMicro);
    if (i == 0) waiter.sleeps();
  }
  EXPECT_EQ(waiter.sleeps(), 0);
}

TEST(PollPace, HandedOverCoreReplacesTheForecast) {
  Waiter waiter;
  waiter.settle();
  waiter.wait_for_each(500 * kMicro, 20);
  waiter.sleeps();
  waiter.wait_for_each(500 * kMicro, 1);
  EXPECT_EQ(waiter.sleeps(), 1);
  waiter.yield = 500 * kMicro;
  waiter.wait_for_each(500 * kMicro, 2);
  waiter.sleeps();
  waiter.wait_for_each(500 * kMicro, 10);
  EXPECT_EQ(waiter.sleeps(), 0);
  // The sender moves to another core.
  waiter.yield = kMicro;
  waiter.wait_for_each(500 * kMicro, 2);
  waiter.sleeps();
  waiter.wait_for_each(500 * kMicro, 1);
  EXPECT_EQ(waiter.sleeps(), 1);
}

TEST(PollPace, MessageThatTakesLongToHandleIsNoHandedOverCore) {
  Waiter waiter;
  waiter.handling = 80 * kMicro;
  waiter.settle();
  for (int i = 0; i < 40; ++i) waiter.wait_for(now_ns + 2 * kMilli);
  for (int i = 0; i < 5; ++i) EXPECT_LE(waiter.wait_for(now_ns + 2 * kMilli), 2 * kMicro);
}

TEST(PollPace, SleepWithoutASilenceIsNoWork) {
  SmallShare thread;
  sleep(thread.poll_pace);
  (void)thread.budget.left(now_ns);
  thread.budget.spend(2 * kMilli);
  thread.poll_pace.found(1);
  // Another thread wants to drive, so this one sleeps.
  now_ns += 10 * kMilli;
  thread.poll_pace.woke();
  EXPECT_EQ(thread.poll_pace.rest(), Rest::kPause);
  EXPECT_LT(thread.budget.left(now_ns), 0);
}

TEST(PollPace, CoreThatStaysBusyIsTriedLessAndLess) {
  Waiter waiter;
  waiter.settle();
  waiter.yield = 3 * kMilli;
  int tried = 0;
  for (int i = 0; i < 1'000; ++i) {
    waiter.wait_for(now_ns + kMilli);
    if (waiter.polled() > kMilli) ++tried;
  }
  EXPECT_LE(tried, 12);
}

TEST(PollPace, WorkDuringASilenceIsNotCharged) {
  SmallShare thread;
  const int64_t before = thread.budget.left(now_ns);
  sleep(thread.poll_pace);
  for (int i = 0; i < 10; ++i) {
    // A task that another thread has posted.
    now_ns += kMilli;
    thread.poll_pace.resume();
    EXPECT_EQ(thread.poll_pace.rest(), Rest::kSleep);
  }
  EXPECT_GE(thread.budget.left(now_ns), before);
}

TEST(PollPace, MessageAfterALongSilenceIsSoleIfItsSourceSentTheOnesBefore) {
  Waiter waiter;
  waiter.settle();
  for (int i = 0; i < 5; ++i) waiter.wait_for(now_ns + kMilli, 1);
  EXPECT_TRUE(waiter.poll_pace().is_sole());
  // A message that follows at once may be one of many.
  waiter.wait_for(now_ns + 1, 1);
  EXPECT_FALSE(waiter.poll_pace().is_sole());
  waiter.wait_for(now_ns + 100 * kMicro, 1);
  EXPECT_FALSE(waiter.poll_pace().is_sole());
  waiter.wait_for(now_ns + kMilli, 1);
  EXPECT_TRUE(waiter.poll_pace().is_sole());
  // Sources that take turns may send at the same time.
  for (int i = 0; i < 10; ++i) {
    waiter.wait_for(now_ns + kMilli, 2 - static_cast<uint64_t>(i % 2));
    EXPECT_FALSE(waiter.poll_pace().is_sole());
  }
}

TEST(PollPace, WorkThatIsNoMessageDoesNotEndTheSilence) {
  Waiter waiter;
  waiter.settle();
  waiter.wait_for_each(2 * kMilli, 20);
  PollPace& poll_pace = waiter.poll_pace();
  sleep(poll_pace);
  const int64_t until = poll_pace.sleep_until();
  EXPECT_NE(until, PollPace::kForever);
  // A timer wakes the thread.
  now_ns += 100 * kMicro;
  poll_pace.woke();
  EXPECT_EQ(poll_pace.rest(), Rest::kSleep);
  EXPECT_EQ(poll_pace.sleep_until(), until);
}

}  // namespace
}  // namespace gradwire
