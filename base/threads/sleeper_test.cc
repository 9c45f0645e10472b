#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/thread_pool.h"

namespace gradwire {
namespace {

// Sleeps that are not woken take this long. Those that are woken take much less.
constexpr absl::Duration kLong = absl::Seconds(20);
constexpr absl::Duration kMuchLess = absl::Seconds(10);

TEST(Sleeper, WakesAtItsTimeout) {
  Mutex mutex;
  Sleeper sleeper;
  const absl::Time start = absl::Now();
  MutexLock lock(mutex);
  sleeper.sleep(mutex, absl::Milliseconds(1));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(1));
}

TEST(Sleeper, WakeWhileAwakeEndsTheNextSleepOnly) {
  Mutex mutex;
  Sleeper sleeper;
  const absl::Time start = absl::Now();
  MutexLock lock(mutex);
  sleeper.wake();
  sleeper.sleep(mutex, kLong);
  EXPECT_LT(absl::Now() - start, kMuchLess);
  const absl::Time again = absl::Now();
  sleeper.sleep(mutex, absl::Milliseconds(1));
  EXPECT_GE(absl::Now() - again, absl::Milliseconds(1));
}

// A later wake_in() must not replace the alarm of wake(), which the thread may not have read yet. The thread
// is usually faster, so the test repeats this.
TEST(Sleeper, LaterAlarmDoesNotUndoAWake) {
  for (int i = 0; i < 200; ++i) {
    Mutex mutex;
    CondVar changed;
    Sleeper sleeper;
    bool sleeps = false;
    absl::Duration slept;
    std::thread thread([&] {
      MutexLock lock(mutex);
      sleeps = true;
      changed.notify_all();
      const absl::Time start = absl::Now();
      sleeper.sleep(mutex, absl::InfiniteDuration());
      slept = absl::Now() - start;
    });
    {
      MutexLock lock(mutex);
      while (!sleeps) changed.wait(mutex);
      sleeper.wake();
      sleeper.wake_in(kLong);
    }
    thread.join();
    ASSERT_LT(slept, kMuchLess) << "in round " << i;
  }
}

}  // namespace
}  // namespace gradwire
