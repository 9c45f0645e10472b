// How the threads of a rank wait for its rings.
#include <sched.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/threads/core_wait.h"
#include "gradwire/base/threads/spin_wait.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_endpoint.h"

namespace gradwire::collectives::cpu {
namespace {

// Polls in a row while a ring is full, which polling the rings to this rank does not show.
constexpr int kSpinsForRoom = 8;
constexpr unsigned kPollsBetweenClocks = 1024;
// How often the group's thread spins on when nothing more has come.
constexpr int kThreadSpins = 4;
constexpr absl::Duration kThreadSleepsFor = absl::Milliseconds(100);

}  // namespace

void ShmEndpoint::arm_and_poll_locked(DeferredEffects& deferred) {
  // What one look leaves is for the group's thread.
  if (arm_locked()) poll_locked(deferred);
  if (carrier_.has_more() && drivers_ == 0) deferred.full.push_back(options_.rank);
}

bool ShmEndpoint::arm_locked() {
  const bool asleep = sleepers_.load(std::memory_order_relaxed) > 0;
  const Doorbell::State wanted = asleep || (drivers_ == 0 && pending_locked()) ? Doorbell::kArmed
                                 : drivers_ > 0                                ? Doorbell::kPolled
                                                                               : Doorbell::kIdle;
  return bells_.publish(wanted) && (wanted == Doorbell::kArmed || carrier_.is_full());
}

bool ShmEndpoint::spin_for(const P2pRingReader::Probe& probe) {
  return gradwire::spin(CoreWait::kSpins, [&] { return probe.has_record(); });
}

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
  if (!deferred.written.empty()) bells_.publish_core();
  return any;
}

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
      // Then nothing here can bring it about.
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
  switch (wait.rest([this] { return bells_.core_is_wanted(kAnyRank); })) {
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

bool ShmEndpoint::sleep(const std::atomic<bool>& done, absl::Time until) {
  DeferredEffects deferred;
  uint32_t bell;
  bool any;
  absl::Time now;
  {
    MutexLock lock(mutex_);
    // What follows from an operation that has ended here does not ring.
    if (endpoint().idle()) return false;
    --drivers_;
    ++sleepers_;
    bell = bells_.count();
    arm_locked();
    // What came before this rank was to be rung for may go on.
    any = poll_locked(deferred);
    now = Clock::system().now();
    if (!closed_) carrier_.expire(now, deferred);
    until = std::min(until, carrier_.next_deadline());
  }
  perform(deferred);
  if (!any && !done.load()) bells_.wait(bell, std::min(CoreWait::kSleepFor, until - now));
  MutexLock lock(mutex_);
  --sleepers_;
  ++drivers_;
  arm_locked();
  return true;
}

void ShmEndpoint::watch_locked(absl::Time deadline) {
  if (deadline >= alarm_ && alarm_ != absl::InfiniteFuture()) return;
  // Until it has looked.
  alarm_ = absl::InfinitePast();
  bells_.ring(options_.rank);
}

// The thread of the group: for what nobody waits for, and for messages that find a ring full. What has come
// may be followed by more, so it looks on for a moment, unless somebody else does.
void ShmEndpoint::work() {
  static const std::atomic<bool> never{false};
  bool looks_on = false;
  int quiet = 0;
  uint64_t seen = 0;
  while (true) {
    DeferredEffects deferred;
    uint32_t bell;
    bool any;
    absl::Duration left;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      bell = bells_.count();
      any = poll_locked(deferred);
      const absl::Time now = Clock::system().now();
      if (!closed_) carrier_.expire(now, deferred);
      quiet = any ? 0 : quiet + 1;
      const bool more = (any || looks_on) && quiet < kThreadSpins && drivers_ == (looks_on ? 1 : 0) &&
                        !bells_.core_is_wanted(kAnyRank);
      if (more != looks_on) drivers_ += more ? 1 : -1;
      looks_on = more;
      if (arm_locked() && poll_locked(deferred)) any = true;
      // To be woken for every operation that waits for a moment would cost more than to look now and then.
      const bool in_use = pending_locked() || std::exchange(seen, operations_) != operations_;
      alarm_ = in_use ? std::min(now + kThreadSleepsFor, carrier_.next_deadline()) : absl::InfiniteFuture();
      left = alarm_ - now;
    }
    perform(deferred);
    if (looks_on) {
      (void)spin(never);
    } else if (!any) {
      bells_.wait(bell, left);
    }
  }
}

}  // namespace gradwire::collectives::cpu
