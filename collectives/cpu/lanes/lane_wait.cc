// How the threads of a rank wait for its lanes.
#include <sched.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/threads/core_wait.h"
#include "gradwire/base/threads/spin_wait.h"
#include "gradwire/collectives/cpu/lanes/lane_core.h"

namespace gradwire::collectives::cpu {
namespace {

// Polls in a row while a lane is full, which polling the lanes to this rank does not show.
constexpr int kSpinsForRoom = 8;
constexpr unsigned kPollsBetweenClocks = 1024;
// How often the group's thread spins on when nothing more has come.
constexpr int kThreadSpins = 4;
constexpr absl::Duration kThreadSleepsFor = absl::Milliseconds(100);

}  // namespace

void LaneCore::arm_and_poll_locked(LaneTodos& todos) {
  // What one look leaves is for the group's thread.
  if (arm_locked()) poll_locked(todos);
  if (carrier_.has_more() && drivers_ == 0) todos.full.push_back(options_.rank);
}

bool LaneCore::arm_locked() {
  const bool asleep = sleepers_.load(std::memory_order_relaxed) > 0;
  const LaneBell::State wanted = asleep || (drivers_ == 0 && pending_locked()) ? LaneBell::kArmed
                                 : drivers_ > 0                                ? LaneBell::kAttended
                                                                               : LaneBell::kIdle;
  return bells_.publish(wanted) && (wanted == LaneBell::kArmed || carrier_.is_full());
}

bool LaneCore::spin_for(const LaneReader::Look& look) {
  return gradwire::spin(CoreWait::kSpins, [&] { return look.news(); });
}

bool LaneCore::spin(const std::atomic<bool>& done) {
  absl::InlinedVector<LaneReader::Look, 8> lanes;
  int spins = CoreWait::kSpins;
  {
    MutexLock lock(mutex_);
    lanes = carrier_.looks();
    if (carrier_.waits_for_room()) spins = kSpinsForRoom;
  }
  return gradwire::spin(spins, [&] {
    return done.load(std::memory_order_relaxed) ||
           std::any_of(lanes.begin(), lanes.end(), [](const LaneReader::Look& lane) { return lane.news(); });
  });
}

bool LaneCore::poll_locked(LaneTodos& todos) {
  if (closed_) return false;
  const bool any = carrier_.poll(todos);
  if (!todos.written.empty()) bells_.publish_core();
  return any;
}

void LaneCore::drive(const std::atomic<bool>& done, absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    ++drivers_;
    arm_locked();
  }
  CoreWait wait(sharing_, deadline);
  bool goes_on = true;
  for (unsigned polls = 1; goes_on && !done.load(std::memory_order_acquire); ++polls) {
    LaneTodos todos;
    bool any;
    {
      MutexLock lock(mutex_);
      any = poll_locked(todos);
      // Then nothing here can bring it about.
      goes_on = !closed_;
    }
    perform(todos);
    if (any) {
      wait.renew();
      if (polls % kPollsBetweenClocks == 0 && Clock::system().now() >= deadline) break;
    } else if (goes_on) {
      goes_on = rest(wait, done, deadline);
    }
  }
  LaneTodos todos;
  {
    MutexLock lock(mutex_);
    --drivers_;
    arm_and_poll_locked(todos);
  }
  perform(todos);
}

bool LaneCore::rest(CoreWait& wait, const std::atomic<bool>& done, absl::Time deadline) {
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

bool LaneCore::sleep(const std::atomic<bool>& done, absl::Time until) {
  LaneTodos todos;
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
    any = poll_locked(todos);
    now = Clock::system().now();
    if (!closed_) carrier_.tend(now, todos);
    until = std::min(until, carrier_.next_deadline());
  }
  perform(todos);
  if (!any && !done.load()) bells_.wait(bell, std::min(CoreWait::kSleepFor, until - now));
  MutexLock lock(mutex_);
  --sleepers_;
  ++drivers_;
  arm_locked();
  return true;
}

void LaneCore::watch_locked(absl::Time deadline) {
  if (deadline >= alarm_ && alarm_ != absl::InfiniteFuture()) return;
  // Until it has looked.
  alarm_ = absl::InfinitePast();
  bells_.ring(options_.rank);
}

// The thread of the group: for what nobody waits for, and for messages that find a lane full. What has come
// may be followed by more, so it looks on for a moment, unless somebody else does.
void LaneCore::work() {
  static const std::atomic<bool> never{false};
  bool looks_on = false;
  int quiet = 0;
  uint64_t seen = 0;
  while (true) {
    LaneTodos todos;
    uint32_t bell;
    bool any;
    absl::Duration left;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      bell = bells_.count();
      any = poll_locked(todos);
      const absl::Time now = Clock::system().now();
      if (!closed_) carrier_.tend(now, todos);
      quiet = any ? 0 : quiet + 1;
      const bool more = (any || looks_on) && quiet < kThreadSpins && drivers_ == (looks_on ? 1 : 0) &&
                        !bells_.core_is_wanted(kAnyRank);
      if (more != looks_on) drivers_ += more ? 1 : -1;
      looks_on = more;
      if (arm_locked() && poll_locked(todos)) any = true;
      // To be woken for every operation that waits for a moment would cost more than to look now and then.
      const bool in_use = pending_locked() || std::exchange(seen, operations_) != operations_;
      alarm_ = in_use ? std::min(now + kThreadSleepsFor, carrier_.next_deadline()) : absl::InfiniteFuture();
      left = alarm_ - now;
    }
    perform(todos);
    if (looks_on) {
      (void)spin(never);
    } else if (!any) {
      bells_.wait(bell, left);
    }
  }
}

}  // namespace gradwire::collectives::cpu
