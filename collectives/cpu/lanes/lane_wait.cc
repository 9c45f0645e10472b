// How the threads of a rank wait for its lanes.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/threads/poller.h"
#include "gradwire/collectives/cpu/lanes/lane_core.h"

namespace gradwire::collectives::cpu {
namespace {

// Looks in a row: 2 to 5 us.
constexpr int kLooks = 200;
// The same while a lane is full, which no look shows.
constexpr int kLooksForRoom = 8;
// Times that the core was left to others before that counts as a long wait.
constexpr int kYields = 8;
constexpr int kYieldsBetweenClocks = 16;
constexpr unsigned kPollsBetweenClocks = 1024;
// How often the group's thread looks on when nothing more has come.
constexpr int kThreadLooks = 4;
// How many waits in a row may at most find a rank on the same core before one sleeps, where there is a core for each. It is
// fewer at first and doubles each time, since the other core may be busy with something else.
constexpr int kMostShared = 1 << 20;
// How long a thread yields before it sleeps: waking one costs 30 to 50 us where the core idles.
constexpr absl::Duration kYieldFor = absl::Milliseconds(1);
// How long it sleeps before it looks whether there is still something to wait for; and the group's thread.
constexpr absl::Duration kSleepFor = absl::Milliseconds(20);
constexpr absl::Duration kTendEvery = absl::Milliseconds(10);
constexpr absl::Duration kThreadSleepsFor = absl::Milliseconds(100);

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, absl::Duration at_most) {
  const timespec time = absl::ToTimespec(std::max(at_most, absl::ZeroDuration()));
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, at_most == absl::InfiniteDuration() ? nullptr : &time,
            nullptr, 0);
}

}  // namespace

void LaneCore::ring(LaneBell& bell) {
  bell.bell.fetch_add(1);
  ::syscall(SYS_futex, &bell.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Between what was written and the look at the reader's state there is a fence; arm_locked() has the other half.
void LaneCore::ring_if_armed(int dst) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  LaneBell& bell = bell_of(dst);
  if (bell.state.load(std::memory_order_relaxed) == LaneBell::kArmed) ring(bell);
}

void LaneCore::ring_if_unattended(int dst) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  LaneBell& bell = bell_of(dst);
  if (bell.state.load(std::memory_order_relaxed) != LaneBell::kAttended) ring(bell);
}

void LaneCore::arm_and_poll_locked(Todos& todos) {
  // What one look leaves is for the group's thread.
  if (arm_locked()) poll_locked(todos);
  if (more_ && drivers_ == 0) todos.full.push_back(options_.rank);
}

bool LaneCore::arm_locked() {
  const bool asleep = sleepers_.load(std::memory_order_relaxed) > 0;
  const LaneBell::State wanted = asleep || (drivers_ == 0 && pending_locked()) ? LaneBell::kArmed
                                 : drivers_ > 0                                ? LaneBell::kAttended
                                                                               : LaneBell::kIdle;
  if (wanted == state_) return false;
  const LaneBell::State before = std::exchange(state_, wanted);
  my_bell().state.store(wanted, std::memory_order_relaxed);
  if (wanted == LaneBell::kAttended || (before == LaneBell::kArmed && wanted == LaneBell::kIdle))
    return false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (wanted == LaneBell::kArmed) return true;
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& each) { return each.in.has_value() && each.in->is_full(); });
}

void LaneCore::note_core() {
  // A look at the thread's own memory where the system has restartable sequences.
  const int core = ::sched_getcpu();
  if (core == core_) return;
  core_ = core;
  my_bell().core.store(core + 1, std::memory_order_relaxed);
}

bool LaneCore::core_is_wanted(int src) const {
  const int core = ::sched_getcpu() + 1;
  const auto is_here = [&](int rank) {
    return rank != options_.rank && bell_of(rank).core.load(std::memory_order_relaxed) == core;
  };
  if (src != Matcher::kAny) return is_here(src);
  for (int rank = 0; rank < options_.size; ++rank) {
    if (is_here(rank)) return true;
  }
  return false;
}

bool LaneCore::look_for(const LaneReader::Look& look) {
  for (int i = 0; i < kLooks; ++i) {
    if (look.news()) return true;
    cpu_relax();
  }
  return false;
}

bool LaneCore::look(const std::atomic<bool>& done) {
  absl::InlinedVector<LaneReader::Look, 8> lanes;
  int looks = kLooks;
  {
    MutexLock lock(mutex_);
    for (const Peer& each : peers_) {
      if (each.in.has_value() && !each.lost) lanes.push_back(each.in->look());
    }
    if (queued_ > 0) looks = kLooksForRoom;
  }
  for (int i = 0; i < looks; ++i) {
    for (const LaneReader::Look& lane : lanes) {
      if (lane.news()) return true;
    }
    if (done.load(std::memory_order_relaxed)) return true;
    cpu_relax();
  }
  return false;
}

bool LaneCore::poll_locked(Todos& todos) {
  bool any = false;
  more_ = false;
  if (closed_) return false;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank || peer(rank).lost) continue;
    if (peer(rank).in->news() && read_locked(rank, todos)) any = true;
    if (!peer(rank).queue.empty() && flush_locked(rank, todos)) any = true;
  }
  return any;
}

// Who waits looks while nobody else seems to want his core, yields it, then sleeps. Where there are cores enough, sharing one
// is an accident that lasts while both only yield; who is woken from sleep is given an idle core.
void LaneCore::drive(const std::atomic<bool>& done, absl::Time deadline) {
  bool shares = false;
  {
    MutexLock lock(mutex_);
    ++drivers_;
    arm_locked();
    if (!core_is_wanted(Matcher::kAny)) {
      shared_ = 0;
    } else if (!crowded_ && ++shared_ >= most_shared_) {
      shared_ = 0;
      most_shared_ = std::min(2 * most_shared_, kMostShared);
      shares = true;
    }
  }
  absl::Time begun = absl::InfinitePast();
  unsigned polls = 0;
  for (int yields = 0; !done.load(std::memory_order_acquire);) {
    Todos todos;
    bool any;
    bool closed;
    {
      MutexLock lock(mutex_);
      any = poll_locked(todos);
      closed = closed_;
    }
    perform(todos);
    // Then nothing here can bring it about.
    if (closed) break;
    if (any && ++polls % kPollsBetweenClocks != 0) {
      yields = 0;
      begun = absl::InfinitePast();
      continue;
    }
    if (!any && std::exchange(shares, false)) {
      if (!sleep(done, deadline)) break;
      continue;
    }
    if (!any && yields < kYields && !core_is_wanted(Matcher::kAny) && look(done)) continue;
    if (!any) ::sched_yield();
    if (++yields % kYieldsBetweenClocks != 0 && !any) continue;
    const absl::Time now = Clock::system().now();
    if (begun == absl::InfinitePast()) begun = now;
    if (now >= deadline) break;
    if (now >= begun + kYieldFor && !sleep(done, deadline)) break;
  }
  Todos todos;
  {
    MutexLock lock(mutex_);
    --drivers_;
    arm_and_poll_locked(todos);
  }
  perform(todos);
}

bool LaneCore::sleep(const std::atomic<bool>& done, absl::Time until) {
  Todos todos;
  uint32_t bell;
  bool any;
  absl::Time now;
  {
    MutexLock lock(mutex_);
    // What follows from an operation that has ended here does not ring.
    if (sends_.empty() && receives_.empty()) return false;
    --drivers_;
    ++sleepers_;
    bell = my_bell().bell.load();
    arm_locked();
    // What came before this rank was to be rung for may go on.
    any = poll_locked(todos);
    now = Clock::system().now();
    tend_locked(now, todos);
    until = std::min(until, next_deadline_);
  }
  perform(todos);
  if (!any && !done.load()) futex_wait(my_bell().bell, bell, std::min(kSleepFor, until - now));
  MutexLock lock(mutex_);
  --sleepers_;
  ++drivers_;
  arm_locked();
  return true;
}

void LaneCore::watch_locked(absl::Time deadline) {
  next_deadline_ = std::min(next_deadline_, deadline);
  if (deadline >= alarm_ && alarm_ != absl::InfiniteFuture()) return;
  // Until it has looked.
  alarm_ = absl::InfinitePast();
  ring(my_bell());
}

// The thread of the group: for what nobody waits for, and for messages that find a lane full. What has come may be followed
// by more, so it looks on for a moment, unless somebody else does.
void LaneCore::work() {
  static const std::atomic<bool> never{false};
  bool looks_on = false;
  int quiet = 0;
  uint64_t seen = 0;
  while (true) {
    Todos todos;
    uint32_t bell;
    bool any;
    absl::Duration left;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      bell = my_bell().bell.load();
      any = poll_locked(todos);
      const absl::Time now = Clock::system().now();
      tend_locked(now, todos);
      quiet = any ? 0 : quiet + 1;
      const bool more = (any || looks_on) && quiet < kThreadLooks && drivers_ == (looks_on ? 1 : 0) &&
                        !core_is_wanted(Matcher::kAny);
      if (more != looks_on) drivers_ += more ? 1 : -1;
      looks_on = more;
      if (arm_locked() && poll_locked(todos)) any = true;
      // To be woken for every operation that waits for a moment would cost more than to look now and then.
      const bool in_use = pending_locked() || std::exchange(seen, next_id_) != next_id_;
      alarm_ = in_use ? std::min(now + kThreadSleepsFor, next_deadline_) : absl::InfiniteFuture();
      left = alarm_ - now;
    }
    perform(todos);
    if (looks_on) {
      (void)look(never);
    } else if (!any) {
      futex_wait(my_bell().bell, bell, left);
    }
  }
}

void LaneCore::tend_locked(absl::Time now, Todos& todos) {
  if (closed_ || now < std::min(tend_at_, next_deadline_)) return;
  std::vector<SendPtr> sends;
  std::vector<ReceivePtr> receives;
  for (const auto& [id, send] : sends_) {
    if (send->deadline <= now) sends.push_back(send);
  }
  for (const auto& [id, receive] : receives_) {
    if (receive->deadline <= now) receives.push_back(receive);
  }
  for (const SendPtr& send : sends) {
    // Its rank may be lost meanwhile.
    if (!sends_.contains(send->id)) continue;
    end_send_locked(send,
                    absl::DeadlineExceededError(absl::StrCat(matcher_.name_of(kLaneChannel, send->dst),
                                                             " has not taken a message of ", send->data.size,
                                                             " bytes (tag ", send->tag, ") in time")),
                    todos);
  }
  for (const ReceivePtr& receive : receives) {
    if (!receives_.contains(receive->id)) continue;
    const std::string from =
        receive->src == Matcher::kAny ? "any rank" : matcher_.name_of(kLaneChannel, receive->src);
    end_receive_locked(receive,
                       absl::DeadlineExceededError(absl::StrCat("no message (tag ", receive->tag,
                                                                ") has come from ", from, " in time")),
                       todos);
  }
  tend_at_ = now + kTendEvery;
  next_deadline_ = absl::InfiniteFuture();
  for (const auto& [id, send] : sends_) next_deadline_ = std::min(next_deadline_, send->deadline);
  for (const auto& [id, receive] : receives_) next_deadline_ = std::min(next_deadline_, receive->deadline);
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank || peer(rank).lost || !memory_->gone(rank)) continue;
    // What it wrote before it went; others could still write there: once around the lane is all there can be.
    for (std::size_t i = 0; i < kLaneCells && read_locked(rank, todos); ++i) {
    }
    const bool left = memory_->member(rank).left.load() != 0;
    lose_locked(rank, absl::UnavailableError(left ? "has left" : "is gone: its process has ended"), todos);
  }
}

void LaneCore::lose_locked(int rank, const absl::Status& reason, Todos& todos) {
  Peer& other = peer(rank);
  if (std::exchange(other.lost, true)) return;
  queued_ -= other.queue.size();
  other.queue.clear();
  other.streams.clear();
  Actions actions;
  matcher_.lost(rank, reason, actions);
  apply_locked(std::move(actions), todos);
  std::vector<SendPtr> sends;
  for (const auto& [id, send] : sends_) {
    if (send->dst == rank) sends.push_back(send);
  }
  for (const SendPtr& send : sends) {
    if (sends_.contains(send->id)) finish_locked(send, matcher_.gone(kLaneChannel, rank), todos);
  }
}

}  // namespace gradwire::collectives::cpu
