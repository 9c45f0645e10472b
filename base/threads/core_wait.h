#pragma once

#include <atomic>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire {

// Decides for one process whether its waits for other processes of this host should give up the core for
// good, because one of them runs on the same core.
//
// With more processes than cores, sharing a core is normal. Otherwise it is an accident that lasts while both
// processes only yield to each other; a thread that wakes from sleep gets an idle core. So every so many
// waits in a row that share a core, one sleeps at once. The number doubles each time, since the other core
// may be busy with something else. Thread-safe.
class CoreSharing {
 public:
  // `processes` wait for one another, this one included.
  explicit CoreSharing(int processes);
  CoreSharing(int processes, int cores) : crowded_(processes > cores) {}

  // Records a wait; `shares`: a process that it waits for runs on the same core. Whether it should sleep at
  // once.
  bool should_sleep(bool shares);

 private:
  const bool crowded_;
  std::atomic<int> shared_in_a_row_{0};
  // How many of these are one too many.
  std::atomic<int> limit_{64};
};

// One wait of a thread for other processes of this host that write into shared memory.
//
//   CoreWait wait(sharing, deadline);
//   while (!poll()) {
//     switch (wait.rest(core_is_wanted)) { ... }
//   }
//
// A thread yields its core at once to a process that it waits for, and spins first when all of these run on
// other cores: those on its own core that it does not wait for could only hand the core back. Not
// thread-safe.
class CoreWait {
 public:
  // Polls in a row of a thread that spins: 2 to 5 us.
  static constexpr int kSpins = 200;
  // A thread that sleeps checks so often whether there is still something to wait for.
  static constexpr absl::Duration kSleepFor = absl::Milliseconds(20);

  enum class Rest {
    kSpin,   // Poll kSpins times in a row, then yield.
    kYield,  // Yield once.
    kSleep,  // Sleep until woken: the wait has taken long, its deadline has come, or see CoreSharing.
  };

  CoreWait(CoreSharing& sharing, absl::Time deadline, const Clock& clock = Clock::system())
      : sharing_(sharing), deadline_(deadline), clock_(clock) {}

  // How to rest before the next poll. `core_is_wanted`: whether a process that the thread waits for was last
  // seen on the core that the thread runs on; it is asked during the first rests only.
  Rest rest(absl::FunctionRef<bool()> core_is_wanted);

  // Something was found: the wait begins anew.
  void renew() {
    rests_ = 0;
    yields_since_ = absl::InfiniteFuture();
  }

 private:
  CoreSharing& sharing_;
  const absl::Time deadline_;
  const Clock& clock_;
  int rests_ = 0;
  // When the clock was read first in this wait.
  absl::Time yields_since_ = absl::InfiniteFuture();
};

}  // namespace gradwire
