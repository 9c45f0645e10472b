#include "gradwire/base/threads/thread_pool.h"

#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/polling/pool_polling.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/threads/execution_state.h"

namespace gradwire {

Sleeper::Sleeper()
    : timer_(Descriptor::from([&] { return ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC); })) {
  if (!timer_.valid()) {
    throw Error(system_status("cannot create a timer", errno));
  }
}

void Sleeper::set_alarm(absl::Duration delay) {
  itimerspec when = {};  // All zero: never.
  if (delay != absl::InfiniteDuration()) {
    when.it_value = absl::ToTimespec(std::max(delay, absl::Nanoseconds(1)));
  }
  ::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

// timerfd_settime(2) drops an expiration that has not been read. So a timer that wake() has set must not be
// set again until the thread has read it. No wake-up is lost:
// 1. Set the alarm while the mutex is held, unless wake() has set it since the last sleep. From now on
//    wake_in() and wake() may set it to an earlier time, but wake_in() does not after wake().
// 2. Release the mutex and read. An expired timer stays readable until it is read, so the read returns at
//    once if the alarm went off in between.
// 3. Lock the mutex. A wake() between the read and the lock counts for this sleep, which it finds ended. The
//    thread sees everything that was changed before that call, because it takes the mutex afterwards.
void Sleeper::sleep(Mutex& mutex, absl::Duration at_most) {
  sleeps_indefinitely_ = at_most == absl::InfiniteDuration();
  alarm_set_ = false;
  if (!woken_) set_alarm(at_most);
  mutex.unlock();
  uint64_t times;
  while (::read(timer_.get(), &times, sizeof(times)) < 0 && errno == EINTR) {
  }
  mutex.lock();
  sleeps_indefinitely_ = false;
  woken_ = false;
}

namespace {

// Number of idle threads that are kept beyond num_threads, so that slightly nested calls do not start and end
// threads.
constexpr int kSpareThreads = 2;
// After this many consecutive standstills one more task may run although no thread sleeps: a task may be
// spinning.
constexpr int kStandstillsBeforeExtra = 100;
// Number of short tasks that a thread runs before it drives the poller again, so that their answers can be
// sent together.
constexpr int kTasksInARow = 8;
// If a task is expected to take longer, the leader appoints another leader before it runs the task.
constexpr std::chrono::nanoseconds kShortTask = std::chrono::microseconds(100);
// The same for the task of a sole message.
constexpr std::chrono::nanoseconds kLongTaskAfterSilence = std::chrono::milliseconds(1);
// While the queued tasks together are expected to take less, those that the leader queues wake no other
// thread.
constexpr std::chrono::nanoseconds kShortQueue = std::chrono::microseconds(250);
// Maximum time without a leader while a task runs that was expected to be short. Checking this wakes the
// supervisor each time.
constexpr absl::Duration kMaxLeaderless = absl::Milliseconds(1);
// The same if at least kBusyTerms leader terms began between two checks: then the tasks are short, and each
// check takes time from them.
constexpr absl::Duration kMaxLeaderlessWhenBusy = absl::Milliseconds(4);
constexpr uint64_t kBusyTerms = 50;
// Number of consecutive checks with a leader after which the supervisor stops checking.
constexpr int kChecksWithLeader = 4;

// The pool whose poller the calling thread drives as the leader.
thread_local const ThreadPool* leading_pool = nullptr;
// No message is expected soon after the one that the calling thread has found as the leader.
thread_local bool found_sole_message = false;
// The pool for which the calling thread runs a task that is known to be short.
thread_local const ThreadPool* short_task_pool = nullptr;

// Returns how long the task that this thread runs next may take without a leader. After a long silence even
// short tasks take long, because nothing is in the caches. If no other message is expected, the supervisor
// appoints a leader early enough.
std::chrono::nanoseconds longest_without_leader() {
  return std::exchange(found_sole_message, false) ? kLongTaskAfterSilence : kShortTask;
}

ThreadPool::Options checked(ThreadPool::Options options) {
  options.num_threads = std::max(1, options.num_threads);
  options.max_threads = std::max(options.num_threads, options.max_threads);
  return options;
}

// Whether a thread of this process neither runs nor is ready to run, according to the kernel. False if that
// is unknown, for example without a free descriptor: more threads would then be added without need.
bool is_asleep(pid_t thread_id) {
  std::FILE* file = std::fopen(absl::StrCat("/proc/self/task/", thread_id, "/stat").c_str(), "re");
  if (file == nullptr) return false;
  char line[128];
  const size_t size = std::fread(line, 1, sizeof(line), file);
  std::fclose(file);
  // The format is "1234 (name) S ..."; the name has at most 15 characters of any kind.
  const absl::string_view text(line, size);
  const size_t end_of_name = text.rfind(") ");
  return end_of_name == text.npos || end_of_name + 2 >= text.size() || text[end_of_name + 2] != 'R';
}

// Drives the poller, then sleeps until there is work. Returns false when a task may start.
//
// A task can be posted while the leader falls asleep. Nothing would wake the leader then, so both sides write
// their own flag first and then read the other's:
// 1. The leader sets leader_asleep, then checks `startable` again before it sleeps.
// 2. post_clean() sets `startable`, then checks leader_asleep and wakes the leader if it is set.
bool drive(Poller& poller, PollPace& pace, LeaderSignal& signal) {
  int64_t until = PollPace::kForever;
  const bool entered = poller.try_enter();
  if (entered) {
    bool stay = true;
    while (stay) {
      const Poller::Found found = poller.poll();
      if (found > Poller::kWork) pace.found(found);
      if (signal.startable.load(std::memory_order_relaxed)) {
        poller.pause(signal.several_queued.load(std::memory_order_relaxed));
        return false;
      }
      // A thread that waits for an answer takes precedence over the leader.
      stay = found != Poller::kNothing || (!poller.wanted() && rest(pace));
    }
    until = pace.sleep_until();
    poller.leave();
  }
  signal.leader_asleep.store(true);
  if (!signal.startable.load()) {
    poller.sleep(until == PollPace::kForever ? absl::InfiniteDuration()
                                             : absl::Nanoseconds(until - monotonic_nanoseconds()));
    if (entered) pace.woke();
  }
  signal.leader_asleep.store(false);
  return !signal.startable.load();
}

}  // namespace

ThreadPool::ThreadPool(Options options)
    : options_(checked(std::move(options))), polling_(std::make_unique<PoolPolling>(options_.wait)) {
  supervisor_ = value_or_throw(start_thread("pool-watch", [this] { supervise(); }));
  absl::Status started;
  {
    MutexLock lock(mutex_);
    started = ensure_leader_locked();
  }
  if (started.ok()) return;
  // Without a thread that leads, nothing would be received.
  shutdown();
  throw Error(std::move(started));
}

// In a forked child the threads and the tasks are those of the parent.
ThreadPool::~ThreadPool() {
  if (mark_.here()) {
    shutdown();
  } else {
    leak_after_fork(queue_, workers_, ended_, supervisor_);
  }
}

bool ThreadPool::post_clean(Task& task, TaskCost* cost) {
  if (!mark_.here()) return false;
  MutexLock lock(mutex_);
  if (stopping_ && total_ == 0) return false;
  queue_.push(task, cost);
  update_startable_locked();
  // The leader takes tasks from the queue next. It runs short tasks one after the other in less time than it
  // takes to wake another thread.
  const bool leader_takes_it = leading_pool == this || (short_task_pool == this && cost != nullptr);
  if (leader_takes_it && signal_.startable.load() && queue_.nanoseconds() < kShortQueue.count()) {
    supervisor_sleeper_.wake_in(kMaxLeaderless);  // In case the leader is held up.
    return true;
  }
  dispatch_locked();
  return true;
}

int ThreadPool::free_slots_locked() const { return options_.num_threads + extra_ - (running_ - blocked_); }

void ThreadPool::update_startable_locked() {
  signal_.startable.store(stopping_ || (!queue_.empty() && free_slots_locked() > 0));
  signal_.several_queued.store(queue_.size() > 1, std::memory_order_relaxed);
}

// Finds a thread for each task that may start, the cheapest one first:
// 1. Threads that were notified or started before and have not taken a task yet, and an awake leader.
// 2. An idle thread. `notified_` counts it at once, so that the next call does not choose it again.
// 3. A sleeping leader.
// 4. A new thread.
//
// The loop ends without enough threads only if no more can be started. Then the supervisor must watch for a
// stall.
void ThreadPool::dispatch_locked(bool count_leader) {
  const int wanted = std::min(static_cast<int>(queue_.size()), free_slots_locked());
  // A leader that is awake checks the queue within a microsecond.
  const bool leader_awake = count_leader && leading_ && !signal_.leader_asleep.load();
  bool leader_counts = leader_awake;
  while (notified_ + starting_ + (leader_counts ? 1 : 0) < wanted) {
    if (idle_ > notified_) {
      ++notified_;
      work_available_.notify_one();
    } else if (count_leader && leading_ && !leader_counts) {
      leader_counts = true;
      options_.poller->wake();
    } else if (!start_worker_locked().ok()) {
      break;
    }
  }
  // A task that no thread is about to take may be a stall.
  if (wanted <= 0 || static_cast<int>(queue_.size()) > notified_ + starting_ + (leader_awake ? 1 : 0)) {
    supervisor_sleeper_.wake_in();
  } else if (leader_awake) {
    supervisor_sleeper_.wake_in(kMaxLeaderless);  // In case the leader is held up.
  }
}

absl::Status ThreadPool::ensure_leader_locked() {
  if (options_.poller == nullptr || leading_ || leader_on_its_way_ || stopping_) return absl::OkStatus();
  if (idle_ > notified_) {
    ++notified_;
    work_available_.notify_one();
  } else {
    GRADWIRE_RETURN_IF_ERROR(start_worker_locked(/*beyond=*/1));
  }
  leader_on_its_way_ = true;
  return absl::OkStatus();
}

// The new thread first waits for mutex_, which this thread holds. So it finds itself counted, and its
// std::thread is assigned before any other thread can join it.
// After a failure the supervisor tries again.
absl::Status ThreadPool::start_worker_locked(int beyond) {
  if (total_ >= options_.max_threads + beyond) {
    // Made once: a full pool needs it for every task, and by then memory may be short.
    static const auto* const kFull =
        new absl::Status(absl::ResourceExhaustedError("the pool has max_threads threads"));
    return *kFull;
  }
  std::list<Worker> added;
  try {
    added.emplace_back();
    const auto self = added.begin();
    GRADWIRE_ASSIGN_OR_RETURN(self->thread, start_thread(options_.name, [this, self] { work(self); }));
  } catch (const std::bad_alloc&) {
    return status_from_exception(std::current_exception());
  }
  workers_.splice(workers_.end(), added);
  ++total_;
  ++starting_;
  return absl::OkStatus();
}

void ThreadPool::wake_all_locked() {
  notified_ = idle_;
  work_available_.notify_all();
}

// Each round of the loop does the first of these that applies:
// 1. Lead, if no thread leads and either no task may start, or a thread was sent to lead, or this thread
//    has run kTasksInARow tasks. Then take a task if one may start.
// 2. Without a task: end if the pool stops or has enough idle threads. A pool with a poller never leaves it
//    without a leader, so go back to step 1 if no thread leads any more.
// 3. Send the held-back messages, because their receivers would wait as long as this thread does.
// 4. Wait for a notification. The thread waits for `notified_` and not for the queue: dispatch_locked() has
//    counted on one thread for each notification, and ensure_leader_locked() notifies without a task.
ThreadPool::Queued ThreadPool::next_task_locked(int& in_a_row) {
  bool flushed = options_.poller == nullptr;
  while (true) {
    // Drive the poller also between tasks, though not after each one, so that new messages are received.
    if (options_.poller != nullptr && !leading_ && !stopping_ &&
        (!signal_.startable.load() || leader_on_its_way_ || ++in_a_row >= kTasksInARow)) {
      lead_locked();
      in_a_row = 0;
    }
    if (!queue_.empty() && free_slots_locked() > 0) return queue_.take_front();
    if (queue_.empty()) {
      if (stopping_) return {};
      if (options_.poller != nullptr && !leading_) continue;
      if (idle_ >= options_.num_threads + kSpareThreads) return {};
    } else {
      if (options_.poller != nullptr && !leading_ && !stopping_) continue;
      supervisor_sleeper_.wake_in();
    }
    if (!flushed) {
      mutex_.unlock();
      options_.poller->flush();
      mutex_.lock();
      flushed = true;
      continue;  // The state may have changed while the lock was released.
    }
    ++idle_;
    while (notified_ == 0) work_available_.wait(mutex_);
    --notified_;
    --idle_;
  }
}

void ThreadPool::lead_locked() {
  leading_ = true;
  leader_on_its_way_ = false;
  ++leader_terms_;
  mutex_.unlock();
  leading_pool = this;
  polling_->leader().resume();
  while (drive(*options_.poller, polling_->leader(), signal_)) {
  }
  leading_pool = nullptr;
  found_sole_message = polling_->leader().is_sole();
  mutex_.lock();
  leading_ = false;
  // No thread leads until this thread is back: the supervisor must check that.
  if (!queue_.empty()) supervisor_sleeper_.wake_in(kMaxLeaderless);
}

void ThreadPool::run(Queued task) {
  const uint32_t expected = task.cost == nullptr ? 0 : task.cost->nanoseconds();
  if (expected > longest_without_leader().count()) {
    MutexLock lock(mutex_);
    (void)ensure_leader_locked();
  }
  const int64_t started = task.cost == nullptr ? 0 : monotonic_nanoseconds();
  ExecutionState::clear();
  short_task_pool = task.cost != nullptr && expected <= kShortTask.count() ? this : nullptr;
  run_contained("a task of the pool", task.task);
  task.task = nullptr;  // Destroy what the task owned here: outside the lock, in the task's state.
  short_task_pool = nullptr;
  ExecutionState::clear();
  if (task.cost == nullptr) return;
  const int64_t took = monotonic_nanoseconds() - started;
  task.cost->record(took);
  // The next tasks may take as long: send the held-back messages now, so that their receivers need not wait.
  if (took > kShortTask.count() && options_.poller != nullptr) options_.poller->flush();
}

// The entry of the thread stays at its address until the end: it is only moved from one list to another.
// Another thread joins it (reap), since a thread cannot join itself.
void ThreadPool::work(std::list<Worker>::iterator self) {
  // By default the kernel may end a sleep 50 us late, which is longer than a call takes.
  ::prctl(PR_SET_TIMERSLACK, 1'000, 0, 0, 0);
  set_current(this);
  mutex_.lock();
  self->thread_id = gettid();
  --starting_;
  int in_a_row = kTasksInARow;
  while (true) {
    Queued task = next_task_locked(in_a_row);
    if (!task.task) break;
    ++started_;
    ++running_;
    update_startable_locked();
    mutex_.unlock();
    run(std::move(task));
    if (!mark_.here()) end_forked_child("a thread of a pool");
    mutex_.lock();
    --running_;
    update_startable_locked();
  }
  --total_;
  ended_.splice(ended_.end(), workers_, self);
  if (stopping_) wake_all_locked();
  if (stopping_ && total_ == 0) supervisor_sleeper_.wake();  // It may sleep for a stall_limit.
  supervisor_sleeper_.wake_in();
  mutex_.unlock();
}

// A thread that waits drives the poller itself if it can: then it receives its own answer, and no other
// thread has to wake it. If another thread drives, this one announces that it wants to (`wanting`); a
// leader then leaves. The load of `done` acquires the result that was written before it. While the poller
// always finds work, the clock is read once in 64 polls, because that costs more than a poll.
//
// Before such a wait begin_blocking() did not appoint a leader, so this must happen when the thread stops
// driving.
bool ThreadPool::drive_until(const std::atomic<bool>& done, absl::Time deadline) {
  if (options_.poller == nullptr || !mark_.here()) return done.load();
  Poller& poller = *options_.poller;
  bool driving = false;
  bool wanting = false;
  absl::Cleanup let_go = [&] {
    if (wanting) poller.want(false);
    if (driving) poller.leave();
  };
  AnswerWait wait = polling_->wait_for_answer(deadline);
  // Work for others must not see the ExecutionState of this thread.
  std::optional<ScopedExecutionState> clean;
  uint32_t busy_polls = 0;
  while (!done.load(std::memory_order_acquire)) {
    if (!driving && poller.try_enter()) {
      driving = true;
      clean.emplace();
    }
    if (!driving && !wanting) {
      wanting = true;
      poller.want(true);
    }
    if (driving && poller.poll() != Poller::kNothing) {
      wait.renew();
      if (++busy_polls % 64 == 0 && Clock::system().now() >= deadline) break;
    } else if (!rest(wait)) {
      break;
    }
  }
  wait.end(done.load(std::memory_order_relaxed));
  std::move(let_go).Invoke();
  if (done.load(std::memory_order_acquire)) return true;
  // This thread does not drive any more: ensure that another thread leads.
  MutexLock lock(mutex_);
  (void)ensure_leader_locked();
  return false;
}

// Each round does the first of these that applies:
// 1. Join the threads that have ended.
// 2. No task is queued: check in short intervals that a thread leads. After kChecksWithLeader checks that
//    found a leader, sleep without a limit; a thread that makes a check necessary calls wake_in().
// 3. Tasks are queued: sleep for stall_limit in short steps, until a task starts. If none has started, the
//    pool is at a standstill (relieve_stall_locked).
void ThreadPool::supervise() {
  mutex_.lock();
  while (!stopping_ || total_ > 0 || !queue_.empty()) {
    if (!ended_.empty()) {
      mutex_.unlock();
      reap();
      mutex_.lock();
    } else if (const uint64_t terms_before = last_leader_terms_; queue_.empty() && watch_leader_locked()) {
      supervisor_sleeper_.sleep(
          mutex_, leader_terms_ - terms_before > kBusyTerms ? kMaxLeaderlessWhenBusy : kMaxLeaderless);
    } else if (queue_.empty()) {
      extra_ = 0;
      standstills_ = 0;
      checks_with_leader_ = 0;
      update_startable_locked();
      supervisor_sleeper_.sleep(mutex_, absl::InfiniteDuration());
    } else {
      const uint64_t started = started_;
      const absl::Time until = Clock::system().now() + options_.stall_limit;
      do {
        supervisor_sleeper_.sleep(mutex_, options_.poller == nullptr ? options_.stall_limit : kMaxLeaderless);
        // Tasks that the leader queued for itself are given to other threads if it does not come back in
        // time.
        if (watch_leader_locked() && !queue_.empty() && started == started_)
          dispatch_locked(/*count_leader=*/false);
      } while (!queue_.empty() && started == started_ && Clock::system().now() < until);
      if (queue_.empty() || started != started_) {
        standstills_ = 0;
      } else {
        relieve_stall_locked();
      }
    }
  }
  mutex_.unlock();
}

bool ThreadPool::watch_leader_locked() {
  if (options_.poller == nullptr || stopping_) return false;
  if (leading_) {
    last_leader_terms_ = leader_terms_;
    return ++checks_with_leader_ < kChecksWithLeader;
  }
  checks_with_leader_ = 0;
  if (last_leader_terms_ == leader_terms_) (void)ensure_leader_locked();
  last_leader_terms_ = leader_terms_;
  return true;
}

// The states of the threads are read without the lock, because /proc is slow. So check afterwards whether a
// task has started meanwhile.
void ThreadPool::relieve_stall_locked() {
  const uint64_t started = started_;
  std::vector<pid_t> thread_ids;
  for (const Worker& worker : workers_) {
    if (worker.thread_id != 0) thread_ids.push_back(worker.thread_id);
  }
  mutex_.unlock();
  const int asleep = static_cast<int>(std::count_if(thread_ids.begin(), thread_ids.end(), is_asleep));
  mutex_.lock();
  if (started != started_ || queue_.empty()) return;
  ++standstills_;
  // Threads that sleep in a task without a BlockingScope.
  const int stuck = asleep - idle_ - blocked_ - (leading_ ? 1 : 0);
  if (stuck > extra_ || standstills_ % kStandstillsBeforeExtra == 0) ++extra_;
  update_startable_locked();
  dispatch_locked(/*count_leader=*/false);  // Also retries to start a thread after an earlier failure.
  if (standstills_ == kStandstillsBeforeExtra && total_ >= options_.max_threads) {
    log(LogLevel::kError, "all ", options_.max_threads, " threads of the pool \"", options_.name,
        "\" are in use (", blocked_, " of them wait), and none of the ", queue_.size(),
        " queued tasks has started for ",
        absl::FormatDuration(kStandstillsBeforeExtra * options_.stall_limit),
        "; do not hold a lock while a task waits, or raise max_threads");
  }
}

void ThreadPool::reap() {
  std::list<Worker> ended;
  {
    MutexLock lock(mutex_);
    ended.swap(ended_);
  }
  for (Worker& worker : ended) worker.thread.join();
}

void ThreadPool::shutdown() {
  if (!mark_.here()) return;
  assert(!on_duty());
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    update_startable_locked();
    if (leading_) options_.poller->wake();
    wake_all_locked();
    supervisor_sleeper_.wake();
  }
  // A concurrent caller waits until the first one has joined the threads.
  std::call_once(joined_, [this] {
    supervisor_.join();
    reap();
  });
}

int ThreadPool::pending() const {
  if (!mark_.here()) return 0;
  MutexLock lock(mutex_);
  return static_cast<int>(queue_.size()) + running_;
}

int ThreadPool::threads() const {
  if (!mark_.here()) return 0;
  MutexLock lock(mutex_);
  return total_;
}

absl::Status ThreadPool::begin_blocking(bool drives) {
  if (!mark_.here()) return absl::OkStatus();
  MutexLock lock(mutex_);
  if (total_ - blocked_ == 1 && total_ >= options_.max_threads) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.max_threads, " threads of the pool \"", options_.name,
                     "\" would wait: calls are nested too deep or too many handlers wait; "
                     "return a Future from the handler instead of waiting in it"));
  }
  ++blocked_;
  short_task_pool = nullptr;
  update_startable_locked();
  if (!queue_.empty()) dispatch_locked();
  if (!drives) (void)ensure_leader_locked();
  return absl::OkStatus();
}

void ThreadPool::end_blocking() {
  if (!mark_.here()) return;
  MutexLock lock(mutex_);
  --blocked_;
  update_startable_locked();
}

}  // namespace gradwire
