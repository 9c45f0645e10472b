#include "gradwire/base/polling/pause_tuner.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

constexpr int64_t kUsInNs = 1'000;

void learn(PauseTuner& pauses, int64_t waited, bool ran_sender, int times) {
  for (int i = 0; i < times; ++i) pauses.learn(waited, ran_sender);
}
void end_soon(PauseTuner& pauses, int times = 1) { learn(pauses, 15 * kUsInNs, false, times); }
void end_late(PauseTuner& pauses, int times = 1) { learn(pauses, 90 * kUsInNs, false, times); }
void run_sender(PauseTuner& pauses, int times = 1) { learn(pauses, 40 * kUsInNs, true, times); }

// Number of waits until pauses are long.
template <class Wait>
int waits_until_trial(PauseTuner& pauses, const Wait& wait) {
  int waits = 0;
  for (; pauses.nanoseconds() == 0; ++waits) wait(pauses);
  return waits;
}

TEST(PauseTuner, IsLongAtFirst) {
  PauseTuner pauses;
  EXPECT_EQ(pauses.nanoseconds(), PauseTuner::kLong);
  EXPECT_FALSE(pauses.proven());
  end_soon(pauses);
  EXPECT_TRUE(pauses.proven());
}

TEST(PauseTuner, IsShortAfterFewWaitsThatTakeLong) {
  PauseTuner pauses;
  end_late(pauses, 2);
  EXPECT_EQ(pauses.nanoseconds(), 0);
  EXPECT_FALSE(pauses.proven());
}

TEST(PauseTuner, StaysLongIfOneOfFourWaitsTakesLong) {
  PauseTuner pauses;
  for (int i = 0; i < 1'000; ++i) {
    end_soon(pauses, 3);
    end_late(pauses);
    ASSERT_EQ(pauses.nanoseconds(), PauseTuner::kLong) << i;
  }
}

TEST(PauseTuner, IsShortIfTheSenderNeedsTheCoreForOneOfFourWaits) {
  PauseTuner pauses;
  end_soon(pauses, 100);
  int long_waits = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (i % 4 == 0) {
      run_sender(pauses);
    } else {
      end_soon(pauses);
    }
    if (pauses.nanoseconds() != 0) ++long_waits;
  }
  EXPECT_LT(long_waits, 200);
}

TEST(PauseTuner, IsTriedLessOftenIfTrialsFail) {
  PauseTuner pauses;
  for (const int expected : {8, 16, 32, 64, 128, 256, 512, 1024, 1024}) {
    end_late(pauses, 2);
    ASSERT_EQ(waits_until_trial(pauses, [](PauseTuner& p) { end_late(p); }), expected);
  }
}

TEST(PauseTuner, IsTriedMoreOftenAgainAfterTrialsThatSucceed) {
  PauseTuner pauses;
  for (int i = 0; i < 4; ++i) {
    end_late(pauses, 2);
    (void)waits_until_trial(pauses, [](PauseTuner& p) { end_late(p); });
  }
  end_soon(pauses, 100);
  run_sender(pauses, 3);
  EXPECT_EQ(waits_until_trial(pauses, [](PauseTuner& p) { end_soon(p); }), 64);
}

TEST(PauseTuner, IsNotTriedWhileTheSenderSharesTheCore) {
  PauseTuner pauses;
  end_late(pauses, 2);
  run_sender(pauses, 1'000);
  EXPECT_EQ(pauses.nanoseconds(), 0);
}

}  // namespace
}  // namespace gradwire
