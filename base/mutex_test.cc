#include "gradwire/base/mutex.h"

#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, ExcludesOtherThreads) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&counter] {
      for (int n = 0; n < 1000; ++n) {
        MutexLock lock(counter.mutex);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, 4000);
}

TEST(Mutex, TryLockFailsWhileHeldElsewhere) {
  Mutex mutex;
  MutexLock lock(mutex);
  bool taken = false;
  std::thread([&] {
    if (mutex.try_lock()) {
      taken = true;
      mutex.unlock();
    }
  }).join();
  EXPECT_FALSE(taken);
}

TEST(CondVar, NotifyWakesWaiter) {
  Counter counter;
  std::thread waiter([&counter] {
    MutexLock lock(counter.mutex);
    while (counter.value == 0) counter.changed.wait(counter.mutex);
    counter.value = 2;
  });
  {
    MutexLock lock(counter.mutex);
    counter.value = 1;
    counter.changed.notify_all();
  }
  waiter.join();
  MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, 2);
}

TEST(CondVar, TimedWaitWithoutNotificationEndsInTime) {
  Counter counter;
  MutexLock lock(counter.mutex);
  const absl::Time start = absl::Now();
  while (counter.changed.wait_for(counter.mutex, absl::Milliseconds(5))) {
  }
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(4));
}

TEST(CondVar, TimedWaitOfNoTimeReturns) {
  Counter counter;
  MutexLock lock(counter.mutex);
  counter.changed.wait_for(counter.mutex, absl::ZeroDuration());
  counter.changed.wait_for(counter.mutex, -absl::InfiniteDuration());
}

TEST(CondVar, TimedWaitIsNotified) {
  for (absl::Duration timeout : {absl::InfiniteDuration(), absl::Hours(10000)}) {
    Counter counter;
    std::thread waiter([&counter, timeout] {
      MutexLock lock(counter.mutex);
      while (counter.value == 0) counter.changed.wait_for(counter.mutex, timeout);
    });
    {
      MutexLock lock(counter.mutex);
      counter.value = 1;
      counter.changed.notify_one();
    }
    waiter.join();
  }
}

}  // namespace
}  // namespace gradwire
