#include "base/thread_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/execution_state.h"
#include "base/log.h"

namespace gradwire {
namespace {

// Idle threads that are kept beyond num_threads, so that calls that nest a little do not start and end
// threads.
constexpr int kSpareThreads = 2;
// After so many standstills in a row one task more may run although no thread sleeps: something may spin.
constexpr int kPatience = 100;

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

}  // namespace

ThreadPool::ThreadPool(Options options) : options_(checked(std::move(options))) {
  supervisor_ = std::thread([this] { supervise(); });
}

ThreadPool::~ThreadPool() { shutdown(); }

bool ThreadPool::post_clean(Task& task) {
  MutexLock lock(mutex_);
  if (stopping_ && total_ == 0) return false;
  queue_.push_back(std::move(task));
  dispatch_locked();
  return true;
}

int ThreadPool::free_places_locked() const { return options_.num_threads + extra_ - (running_ - blocked_); }

void ThreadPool::dispatch_locked() {
  const int wanted = std::min(static_cast<int>(queue_.size()), free_places_locked());
  while (notified_ + starting_ < wanted) {
    if (idle_ > notified_) {
      ++notified_;
      work_available_.notify_one();
    } else if (!start_worker_locked()) {
      break;
    }
  }
  if (static_cast<int>(queue_.size()) > notified_ + starting_) wake_supervisor_locked();
}

bool ThreadPool::start_worker_locked() {
  if (total_ >= options_.max_threads) return false;
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

void ThreadPool::wake_supervisor_locked() {
  if (supervisor_sleeps_) supervisor_wakes_.notify_one();
}

Executor::Task ThreadPool::next_task_locked() {
  while (queue_.empty() || free_places_locked() <= 0) {
    if (queue_.empty()) {
      if (stopping_ || idle_ >= options_.num_threads + kSpareThreads) return nullptr;
    } else {
      wake_supervisor_locked();
    }
    ++idle_;
    while (notified_ == 0) work_available_.wait(mutex_);
    --notified_;
    --idle_;
  }
  Task task = std::move(queue_.front());
  queue_.pop_front();
  return task;
}

void ThreadPool::work(std::list<Worker>::iterator self) {
  pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
  set_current(this);
  mutex_.lock();
  self->thread_id = gettid();
  --starting_;
  while (Task task = next_task_locked()) {
    ++started_;
    ++running_;
    mutex_.unlock();
    ExecutionState().restore();
    task();
    task = nullptr;  // What the task owned is destroyed here, outside the lock and in the task's state.
    ExecutionState().restore();
    mutex_.lock();
    --running_;
  }
  --total_;
  ended_.splice(ended_.end(), workers_, self);
  if (stopping_) wake_all_locked();
  if (stopping_ && total_ == 0) supervisor_wakes_.notify_one();  // It may be waiting out a stall_limit.
  wake_supervisor_locked();
  mutex_.unlock();
}

void ThreadPool::supervise() {
  pthread_setname_np(pthread_self(), "pool-watch");
  mutex_.lock();
  while (!stopping_ || total_ > 0 || !queue_.empty()) {
    if (!ended_.empty()) {
      mutex_.unlock();
      reap();
      mutex_.lock();
    } else if (queue_.empty()) {
      extra_ = 0;
      standstills_ = 0;
      supervisor_sleeps_ = true;
      supervisor_wakes_.wait(mutex_);
      supervisor_sleeps_ = false;
    } else {
      const uint64_t started = started_;
      supervisor_wakes_.wait_for(mutex_, options_.stall_limit);
      if (queue_.empty() || started != started_) {
        standstills_ = 0;
      } else {
        relieve_stall_locked();
      }
    }
  }
  mutex_.unlock();
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
  const int stuck = asleep - idle_ - blocked_;
  if (stuck > extra_ || standstills_ % kPatience == 0) ++extra_;
  dispatch_locked();  // Also starts the thread that could not be started before.
  if (standstills_ == kPatience && total_ >= options_.max_threads) {
    log(LogLevel::kError, "all ", options_.max_threads, " threads of the pool \"", options_.name,
        "\" are in use, ", blocked_, " of them wait, and none of the ", queue_.size(),
        " queued tasks has started for ", absl::FormatDuration(kPatience * options_.stall_limit),
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
    wake_all_locked();
    supervisor_wakes_.notify_all();
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

absl::Status ThreadPool::begin_blocking() {
  MutexLock lock(mutex_);
  if (total_ - blocked_ == 1 && total_ >= options_.max_threads) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", options_.max_threads, " threads of the pool \"", options_.name,
        "\" wait, and the last one must not: calls are nested too deep or too many handlers wait; "
        "return a Future from the handler instead of waiting in it"));
  }
  ++blocked_;
  if (!queue_.empty()) dispatch_locked();
  return absl::OkStatus();
}

void ThreadPool::end_blocking() {
  MutexLock lock(mutex_);
  --blocked_;
}

}  // namespace gradwire
