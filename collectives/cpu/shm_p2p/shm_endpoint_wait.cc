// The part of ShmEndpoint in which threads wait for the rings.
#include <sched.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/polling/core_wait.h"
#include "gradwire/base/threads/spin_wait.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_endpoint.h"

namespace gradwire::collectives::cpu {
namespace {

// Number of spins while this rank waits for room in a ring: the probes of incoming rings do not detect room.
constexpr int kSpinsForRoom = 8;
constexpr unsigned kPollsBetweenClocks = 1024;
// Number of polls without result after which the group's thread stops polling.
constexpr int kThreadSpins = 4;
constexpr absl::Duration kThreadSleepsFor = absl::Milliseconds(100);

}  // namespace

void ShmEndpoint::arm_and_poll_locked(DeferredEffects& deferred) {
  // The group's thread reads what one poll leaves.
  if (arm_locked()) poll_locked(deferred);
  if (carrier_.has_more() && drivers_ == 0) deferred.full.push_back(options_.rank);
}

// Chooses the state to publish:
// - kArmed: a thread of this rank sleeps; or nobody polls, but something is pending, so the group's thread
//   must be woken for every record.
// - kPolled: a thread polls, so no signal is needed.
// - kIdle: nothing is expected. Messages may wait in the rings until an operation begins.
// The extra poll after kIdle is needed only if a ring is full: its writer may have waited for room without a
// signal.
bool ShmEndpoint::arm_locked() {
  const bool asleep = sleepers_.load(std::memory_order_relaxed) > 0;
  const Doorbell::State wanted = asleep || (drivers_ == 0 && pending_locked()) ? Doorbell::kArmed
                                 : drivers_ > 0                                ? Doorbell::kPolled
                                                                               : Doorbell::kIdle;
  return doorbells_.publish(wanted) && (wanted == Doorbell::kArmed || carrier_.is_full());
}

bool ShmEndpoint::spin_for(const P2pRingReader::Probe& probe) {
  return gradwire::spin(CoreWait::kSpins, [&] { return probe.has_record(); });
}

// The probes are copied under the lock and used without it, so that other threads can use the endpoint
// meanwhile. A probe may be outdated if another thread has read the record; then the caller only polls once
// in vain.
bool ShmEndpoint::spin(const std::atomic<bool>& done) {
  absl::InlinedVector<P2pRingReader::Probe, 8> rings;
  int spins = CoreWait::kSpins;
  {
    MutexLock lock(mutex_);
    rings = carrier_.probes();
    if (carrier_.waits_for_room()) spins = kSpinsForRoom;
  }
  return gradwire::spin(spins, [&] {
    return done.load(std::memory_order_relaxed) ||
           std::any_of(rings.begin(), rings.end(),
                       [](const P2pRingReader::Probe& ring) { return ring.has_record(); });
  });
}

bool ShmEndpoint::poll_locked(DeferredEffects& deferred) {
  if (closed_) return false;
  const bool any = carrier_.poll(deferred);
  if (!deferred.written.empty()) doorbells_.publish_core();
  return any;
}

// A thread that waits for a future polls for all operations of this rank:
// 1. Count the thread as a driver, so that others do not signal while it polls.
// 2. Poll until `done` is set. The clock is read seldom while messages arrive, because reading it costs as
//    much as a poll.
// 3. Stop being a driver. Publishing the new state may need one more poll, because others did not signal
//    meanwhile.
void ShmEndpoint::drive(const std::atomic<bool>& done, absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    ++drivers_;
    arm_locked();
  }
  CoreWait wait(sharing_, deadline);
  bool goes_on = true;
  for (unsigned polls = 1; goes_on && !done.load(std::memory_order_acquire); ++polls) {
    DeferredEffects deferred;
    bool any;
    {
      MutexLock lock(mutex_);
      any = poll_locked(deferred);
      // A closed endpoint cannot complete the operation.
      goes_on = !closed_;
    }
    perform(deferred);
    if (any) {
      wait.renew();
      if (polls % kPollsBetweenClocks == 0 && Clock::system().now() >= deadline) break;
    } else if (goes_on) {
      goes_on = rest(wait, done, deadline);
    }
  }
  DeferredEffects deferred;
  {
    MutexLock lock(mutex_);
    --drivers_;
    arm_and_poll_locked(deferred);
  }
  perform(deferred);
}

bool ShmEndpoint::rest(CoreWait& wait, const std::atomic<bool>& done, absl::Time deadline) {
  switch (wait.rest([this] { return doorbells_.core_is_wanted(kAnyRank); })) {
    case CoreWait::Rest::kSpin:
      if (spin(done)) break;
      [[fallthrough]];
    case CoreWait::Rest::kYield:
      ::sched_yield();
      break;
    case CoreWait::Rest::kSleep:
      return Clock::system().now() < deadline && sleep(done, deadline);
  }
  return true;
}

// No wake-up may be lost between the last poll and the sleep. So:
// 1. Read the number of signals so far.
// 2. Publish that this rank must be signalled for every write.
// 3. Poll once more, for records that were written before step 2 without a signal.
// 4. Sleep only if step 3 found nothing, and only until the number of signals differs from step 1.
bool ShmEndpoint::sleep(const std::atomic<bool>& done, absl::Time until) {
  DeferredEffects deferred;
  uint32_t signals;
  bool any;
  absl::Time now;
  {
    MutexLock lock(mutex_);
    // If no operation is in progress, `done` may depend on a continuation that does not signal this rank.
    if (endpoint().idle()) return false;
    --drivers_;
    ++sleepers_;
    signals = doorbells_.signal_count();
    arm_locked();
    // Records that were written before this rank was armed did not signal it, so poll once more.
    any = poll_locked(deferred);
    now = Clock::system().now();
    if (!closed_) carrier_.expire(now, deferred);
    until = std::min(until, carrier_.next_deadline());
  }
  perform(deferred);
  if (!any && !done.load()) doorbells_.wait(signals, std::min(CoreWait::kSleepFor, until - now));
  MutexLock lock(mutex_);
  --sleepers_;
  ++drivers_;
  arm_locked();
  return true;
}

// Called for each operation that is not done at once. In most cases the thread will run early enough by
// itself, and no signal is sent. While next_expiry_ is InfiniteFuture the thread sleeps without a limit. Then
// it is signalled even for an operation without a deadline, because only its regular checks find ranks that
// are gone.
void ShmEndpoint::schedule_expiry_locked(absl::Time deadline) {
  if (deadline >= next_expiry_ && next_expiry_ != absl::InfiniteFuture()) return;
  // Until the thread has run.
  next_expiry_ = absl::InfinitePast();
  doorbells_.signal(options_.rank);
}

// The group's thread. It handles operations for which no thread waits, and messages for which a ring had no
// room. After something has arrived, more may follow, so it polls on for a moment, unless another thread
// polls.
// Each round, with the lock held:
// 1. Read the number of signals, so that a signal after the poll ends the sleep of step 5 at once.
// 2. Poll, and end the operations whose deadline has passed.
// 3. Decide whether this thread goes on polling. If so, it counts as a driver, and others do not signal.
// 4. Publish the state, and poll once more if others may have written without a signal.
// 5. Without the lock: complete futures, then spin or sleep.
//
// The first round waits for the first signal. The number of signals is 0 in a new group, so a signal that
// came before this thread ran is not lost. Without one, nothing is in progress, and what others have written
// may stay in the rings, where try_receive() finds it.
void ShmEndpoint::work() {
  static const std::atomic<bool> never{false};
  doorbells_.wait(0, absl::InfiniteDuration());
  bool keeps_polling = false;
  int idle_polls = 0;
  uint64_t seen_operations = 0;
  while (true) {
    DeferredEffects deferred;
    uint32_t signals;
    bool any;
    absl::Duration left;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      signals = doorbells_.signal_count();
      any = poll_locked(deferred);
      const absl::Time now = Clock::system().now();
      if (!closed_) carrier_.expire(now, deferred);
      idle_polls = any ? 0 : idle_polls + 1;
      const bool poll_more = (any || keeps_polling) && idle_polls < kThreadSpins &&
                             drivers_ == (keeps_polling ? 1 : 0) && !doorbells_.core_is_wanted(kAnyRank);
      if (poll_more != keeps_polling) drivers_ += poll_more ? 1 : -1;
      keeps_polling = poll_more;
      if (arm_locked() && poll_locked(deferred)) any = true;
      // While operations are used, the thread checks at regular intervals. Waking it for every operation that
      // waits for a moment would cost more.
      const bool in_use = pending_locked() || std::exchange(seen_operations, operations_) != operations_;
      next_expiry_ =
          in_use ? std::min(now + kThreadSleepsFor, carrier_.next_deadline()) : absl::InfiniteFuture();
      left = next_expiry_ - now;
    }
    perform(deferred);
    if (keeps_polling) {
      (void)spin(never);
    } else if (!any) {
      doorbells_.wait(signals, left);
    }
  }
}

}  // namespace gradwire::collectives::cpu
