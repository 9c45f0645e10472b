#pragma once

#include <atomic>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire {

// Decides whether a wait for other processes of this host should sleep, because one of them runs on the same
// core. There is one object per process.
//
// With more processes than cores, sharing a core is normal. Otherwise it is an accident, and it lasts as long
// as both processes only yield to each other; a thread that wakes from sleep is placed on an idle core. So
// after a number of consecutive waits that share a core, one wait sleeps at once. The number doubles each
// time, since the other core may be busy with something else. Thread-safe.
class CoreSharing {
 public:
  // `processes`: number of processes that wait for one another, including this one.
  explicit CoreSharing(int processes);
  CoreSharing(int processes, int cores) : crowded_(processes > cores) {}

  // Records a wait. `shares`: whether an awaited process runs on the same core. Returns whether this wait
  // should sleep at once.
  bool should_sleep(bool shares);

 private:
  const bool crowded_;
  std::atomic<int> shared_in_a_row_{0};
  // Number of consecutive shared waits after which a wait sleeps.
  std::atomic<int> limit_{64};
};

// One wait of a thread for other processes of this host that write into shared memory.
//
//   CoreWait wait(sharing, deadline);
//   while (!poll()) {
//     switch (wait.rest(core_is_wanted)) { ... }
//   }
//
// If an awaited process shares the core, the thread yields to it at once. Otherwise it spins first: any
// process that shares the core is not awaited and could only give the core back. Not thread-safe.
class CoreWait {
 public:
  // Number of consecutive polls of a spinning thread: 2 to 5 us.
  static constexpr int kSpins = 200;
  // Maximum time of one sleep. Then the thread checks whether it must still wait.
  static constexpr absl::Duration kSleepFor = absl::Milliseconds(20);

  enum class Rest {
    kSpin,   // Poll kSpins times in a row, then yield.
    kYield,  // Yield once.
    kSleep,  // Sleep until woken: the wait has taken long, its deadline has come, or see CoreSharing.
  };

  CoreWait(CoreSharing& sharing, absl::Time deadline, const Clock& clock = Clock::system())
      : sharing_(sharing), deadline_(deadline), clock_(clock) {}

  // Returns how to rest before the next poll. `core_is_wanted` returns whether an awaited process was last
  // seen on the core of this thread; it is called only during the first rests.
  Rest rest(absl::FunctionRef<bool()> core_is_wanted);

  // Restarts the wait after a poll that found something.
  void renew() {
    rests_ = 0;
    yields_since_ = absl::InfiniteFuture();
  }

 private:
  CoreSharing& sharing_;
  const absl::Time deadline_;
  const Clock& clock_;
  int rests_ = 0;
  // Time of the first clock reading in this wait.
  absl::Time yields_since_ = absl::InfiniteFuture();
};

}  // namespace gradwire
