#include "gradwire/base/threads/thread_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/spin_wait.h"

namespace gradwire {
namespace {

// Idle threads that are kept beyond num_threads, so that calls that nest a little do not start and end
// threads.
constexpr int kSpareThreads = 2;
// After so many standstills in a row one task more may run although no thread sleeps: something may spin.
constexpr int kTimeout = 100;
// Short tasks that a thread runs before it looks at the poller again, so that their answers can leave
// together.
constexpr int kTasksInARow = 8;
// A task that is expected to take longer is not run by the leader without another to lead.
constexpr std::chrono::nanoseconds kShortTask = std::chrono::microseconds(100);
// Tasks that the leader queues wake nobody while all of them together take less.
constexpr std::chrono::nanoseconds kShortQueue = std::chrono::microseconds(250);
// How long nobody need lead while a task runs that was expected to be short. Watching costs a thread a wake
// each time.
constexpr absl::Duration kUnattended = absl::Milliseconds(1);
// The same while leaders come and go at least so often between two looks: what runs is short, and each look
// takes time from it.
constexpr absl::Duration kUnattendedWhenBrisk = absl::Milliseconds(4);
constexpr uint64_t kBrisk = 50;
// Looks that found a leader in its place before the watch ends.
constexpr int kAttendedLooks = 4;

// The pool whose poller the calling thread drives as the leader.
thread_local const ThreadPool* leading_pool = nullptr;
// The pool of which the calling thread runs a task that is known to be short.
thread_local const ThreadPool* back_soon_pool = nullptr;

ThreadPool::Options checked(ThreadPool::Options options) {
  options.num_threads = std::max(1, options.num_threads);
  options.max_threads = std::max(options.num_threads, options.max_threads);
  return options;
}

// Whether a thread of this process neither runs nor wants to, as the kernel sees it. True when it cannot be
// told.
bool sleeps(pid_t thread_id) {
  std::FILE* file = std::fopen(absl::StrCat("/proc/self/task/", thread_id, "/stat").c_str(), "re");
  if (file == nullptr) return true;
  char line[128];
  const size_t size = std::fread(line, 1, sizeof(line), file);
  std::fclose(file);
  // "1234 (name, which may hold anything) S ...", with at most 15 characters of name.
  const absl::string_view text(line, size);
  const size_t end_of_name = text.rfind(") ");
  return end_of_name == text.npos || end_of_name + 2 >= text.size() || text[end_of_name + 2] != 'R';
}

// One turn of a leader; false when a task may start.
bool drive(Poller& poller, const WaitPolicy& wait, LeaderSignal& signal) {
  if (poller.try_enter()) {
    SpinWait spin_wait(wait);
    bool stay = true;
    while (stay) {
      const bool any = poller.poll();
      if (signal.startable.load(std::memory_order_relaxed)) {
        poller.pause(signal.several_queued.load(std::memory_order_relaxed));
        return false;
      }
      // One that waits for something has more right to drive.
      stay = any ? spin_wait.renew() : !poller.wanted() && spin_wait.rest();
    }
    poller.leave();
  }
  signal.leader_asleep.store(true);
  if (!signal.startable.load()) poller.sleep();
  signal.leader_asleep.store(false);
  return !signal.startable.load();
}

}  // namespace

ThreadPool::ThreadPool(Options options) : options_(checked(std::move(options))) {
  supervisor_ = std::thread([this] { supervise(); });
  if (options_.poller != nullptr) {
    MutexLock lock(mutex_);
    ensure_leader_locked();
  }
}

ThreadPool::~ThreadPool() { shutdown(); }

bool ThreadPool::post_clean(Task& task, TaskCost* cost) {
  MutexLock lock(mutex_);
  if (stopping_ && total_ == 0) return false;
  queue_.push({std::move(task), cost});
  update_startable_locked();
  // The thread that leads comes here next, and runs short tasks one after the other faster than it wakes
  // others.
  const bool back_soon = leading_pool == this || (back_soon_pool == this && cost != nullptr);
  if (back_soon && signal_.startable.load() && queue_.nanoseconds() < kShortQueue.count()) {
    supervisor_sleep_.call(kUnattended);  // Should it not come.
    return true;
  }
  dispatch_locked();
  return true;
}

int ThreadPool::free_places_locked() const { return options_.num_threads + extra_ - (running_ - blocked_); }

void ThreadPool::update_startable_locked() {
  signal_.startable.store(stopping_ || (!queue_.empty() && free_places_locked() > 0));
  signal_.several_queued.store(queue_.size() > 1, std::memory_order_relaxed);
}

void ThreadPool::dispatch_locked(bool count_leader) {
  const int wanted = std::min(static_cast<int>(queue_.size()), free_places_locked());
  // A leader that is awake looks here within a microsecond.
  const bool leader_awake = count_leader && leading_ && !signal_.leader_asleep.load();
  bool leader_counts = leader_awake;
  while (notified_ + starting_ + (leader_counts ? 1 : 0) < wanted) {
    if (idle_ > notified_) {
      ++notified_;
      work_available_.notify_one();
    } else if (count_leader && leading_ && !leader_counts) {
      leader_counts = true;
      options_.poller->wake();
    } else if (!start_worker_locked()) {
      break;
    }
  }
  // What no thread is on its way to may be a stall.
  if (wanted <= 0 || static_cast<int>(queue_.size()) > notified_ + starting_ + (leader_awake ? 1 : 0)) {
    supervisor_sleep_.call();
  } else if (leader_awake) {
    supervisor_sleep_.call(kUnattended);  // Should it be held up where it is.
  }
}

void ThreadPool::ensure_leader_locked() {
  if (options_.poller == nullptr || leading_ || leader_coming_ || stopping_) return;
  if (idle_ > notified_) {
    ++notified_;
    work_available_.notify_one();
  } else if (!start_worker_locked(/*beyond=*/1)) {
    return;
  }
  leader_coming_ = true;
}

bool ThreadPool::start_worker_locked(int beyond) {
  if (total_ >= options_.max_threads + beyond) return false;
  workers_.emplace_back();
  auto self = std::prev(workers_.end());
  try {
    self->thread = std::thread([this, self] { work(self); });
  } catch (const std::system_error&) {
    workers_.pop_back();  // The supervisor tries again.
    return false;
  }
  ++total_;
  ++starting_;
  return true;
}

void ThreadPool::wake_all_locked() {
  notified_ = idle_;
  work_available_.notify_all();
}

ThreadPool::Queued ThreadPool::next_task_locked(int& in_a_row) {
  bool flushed = options_.poller == nullptr;
  while (true) {
    // Also between tasks, though not each: what has come meanwhile is looked at.
    if (options_.poller != nullptr && !leading_ && !stopping_ &&
        (!signal_.startable.load() || leader_coming_ || ++in_a_row >= kTasksInARow)) {
      lead_locked();
      in_a_row = 0;
    }
    if (!queue_.empty() && free_places_locked() > 0) return queue_.take_front();
    if (queue_.empty()) {
      if (stopping_) return {};
      if (options_.poller != nullptr && !leading_) continue;
      if (idle_ >= options_.num_threads + kSpareThreads) return {};
    } else {
      if (options_.poller != nullptr && !leading_ && !stopping_) continue;
      supervisor_sleep_.call();
    }
    if (!flushed) {
      mutex_.unlock();
      options_.poller->flush();
      mutex_.lock();
      flushed = true;
      continue;  // All may have changed.
    }
    ++idle_;
    while (notified_ == 0) work_available_.wait(mutex_);
    --notified_;
    --idle_;
  }
}

void ThreadPool::lead_locked() {
  leading_ = true;
  leader_coming_ = false;
  ++led_;
  mutex_.unlock();
  leading_pool = this;
  while (drive(*options_.poller, options_.wait, signal_)) {
  }
  leading_pool = nullptr;
  mutex_.lock();
  leading_ = false;
  // Nobody leads until this thread is back: that is to be watched.
  if (!queue_.empty()) supervisor_sleep_.call(kUnattended);
}

void ThreadPool::run(Queued task) {
  const uint32_t expected = task.cost == nullptr ? 0 : task.cost->nanoseconds();
  if (expected > kShortTask.count()) {
    MutexLock lock(mutex_);
    ensure_leader_locked();
  }
  const auto started =
      task.cost == nullptr ? std::chrono::steady_clock::time_point() : std::chrono::steady_clock::now();
  ExecutionState().restore();
  back_soon_pool = task.cost != nullptr && expected <= kShortTask.count() ? this : nullptr;
  task.task();
  task.task = nullptr;  // What the task owned is destroyed here, outside the lock and in the task's state.
  back_soon_pool = nullptr;
  ExecutionState().restore();
  if (task.cost == nullptr) return;
  const auto took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - started);
  task.cost->record(took.count());
  // The next tasks in a row may take as long: nobody is to wait for them.
  if (took > kShortTask && options_.poller != nullptr) options_.poller->flush();
}

void ThreadPool::work(std::list<Worker>::iterator self) {
  pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
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
    mutex_.lock();
    --running_;
    update_startable_locked();
  }
  --total_;
  ended_.splice(ended_.end(), workers_, self);
  if (stopping_) wake_all_locked();
  if (stopping_ && total_ == 0) supervisor_sleep_.wake();  // It may be waiting out a stall_limit.
  supervisor_sleep_.call();
  mutex_.unlock();
}

bool ThreadPool::look_until(const std::atomic<bool>& done, absl::Time deadline) {
  if (options_.poller == nullptr) return done.load();
  Poller& poller = *options_.poller;
  bool driving = false;
  bool wanting = false;
  WaitPolicy policy = options_.wait;
  if (deadline != absl::InfiniteFuture()) {
    const absl::Duration left = deadline - Clock::system().now();
    policy.pause = std::min(policy.pause, left);
    policy.yield = std::min(policy.yield, left);
  }
  SpinWait wait(policy);
  // What is done here for others must not see what this thread is about.
  std::optional<ScopedExecutionState> clean;
  uint32_t looks = 0;
  while (!done.load(std::memory_order_acquire)) {
    if (!driving && poller.try_enter()) {
      driving = true;
      clean.emplace(ExecutionState());
    }
    if (!driving && !wanting) {
      wanting = true;
      poller.want(true);
    }
    if (driving && poller.poll()) {
      wait.renew();
      if (++looks % 64 == 0 && Clock::system().now() >= deadline) break;
    } else if (!wait.rest()) {
      break;
    }
  }
  if (wanting) poller.want(false);
  if (driving) poller.leave();
  if (done.load(std::memory_order_acquire)) return true;
  // It is others who must look from here on.
  MutexLock lock(mutex_);
  ensure_leader_locked();
  return false;
}

void ThreadPool::supervise() {
  pthread_setname_np(pthread_self(), "pool-watch");
  mutex_.lock();
  while (!stopping_ || total_ > 0 || !queue_.empty()) {
    if (!ended_.empty()) {
      mutex_.unlock();
      reap();
      mutex_.lock();
    } else if (const uint64_t led = led_before_; queue_.empty() && watch_leader_locked()) {
      supervisor_sleep_.sleep(mutex_, led_ - led > kBrisk ? kUnattendedWhenBrisk : kUnattended);
    } else if (queue_.empty()) {
      extra_ = 0;
      standstills_ = 0;
      attended_looks_ = 0;
      update_startable_locked();
      supervisor_sleep_.sleep(mutex_, absl::InfiniteDuration());
    } else {
      const uint64_t started = started_;
      const absl::Time until = Clock::system().now() + options_.stall_limit;
      do {
        supervisor_sleep_.sleep(mutex_, options_.poller == nullptr ? options_.stall_limit : kUnattended);
        // What the leader queued for itself is for others when it does not come back.
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
    led_before_ = led_;
    return ++attended_looks_ < kAttendedLooks;
  }
  attended_looks_ = 0;
  if (led_before_ == led_) ensure_leader_locked();
  led_before_ = led_;
  return true;
}

void ThreadPool::relieve_stall_locked() {
  const uint64_t started = started_;
  std::vector<pid_t> thread_ids;
  for (const Worker& worker : workers_) {
    if (worker.thread_id != 0) thread_ids.push_back(worker.thread_id);
  }
  mutex_.unlock();
  const int asleep = static_cast<int>(std::count_if(thread_ids.begin(), thread_ids.end(), sleeps));
  mutex_.lock();
  if (started != started_ || queue_.empty()) return;
  ++standstills_;
  // Those that sleep, less those known to.
  const int stuck = asleep - idle_ - blocked_ - (leading_ ? 1 : 0);
  if (stuck > extra_ || standstills_ % kTimeout == 0) ++extra_;
  update_startable_locked();
  dispatch_locked(/*count_leader=*/false);  // Also starts the thread that could not be started before.
  if (standstills_ == kTimeout && total_ >= options_.max_threads) {
    log(LogLevel::kError, "all ", options_.max_threads, " threads of the pool \"", options_.name,
        "\" are in use, ", blocked_, " of them wait, and none of the ", queue_.size(),
        " queued tasks has started for ", absl::FormatDuration(kTimeout * options_.stall_limit),
        ": tasks that hold a lock while they wait, or too few threads");
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
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    update_startable_locked();
    if (leading_) options_.poller->wake();
    wake_all_locked();
    supervisor_sleep_.wake();
  }
  // Whoever comes second waits for the first to have joined.
  std::call_once(joined_, [this] {
    supervisor_.join();
    reap();
  });
}

int ThreadPool::pending() const {
  MutexLock lock(mutex_);
  return static_cast<int>(queue_.size()) + running_;
}

int ThreadPool::threads() const {
  MutexLock lock(mutex_);
  return total_;
}

absl::Status ThreadPool::begin_blocking(bool looks) {
  MutexLock lock(mutex_);
  if (total_ - blocked_ == 1 && total_ >= options_.max_threads) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", options_.max_threads, " threads of the pool \"", options_.name,
        "\" wait, and the last one must not: calls are nested too deep or too many handlers wait; "
        "return a Future from the handler instead of waiting in it"));
  }
  ++blocked_;
  back_soon_pool = nullptr;
  update_startable_locked();
  if (!queue_.empty()) dispatch_locked();
  if (!looks) ensure_leader_locked();
  return absl::OkStatus();
}

void ThreadPool::end_blocking() {
  MutexLock lock(mutex_);
  --blocked_;
  update_startable_locked();
}

}  // namespace gradwire
