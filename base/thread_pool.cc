#include "base/thread_pool.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/execution_state.h"

namespace gradwire {

ThreadPool::ThreadPool(Options options) : options_(std::move(options)) {
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

// Finds a thread for the task at the back of the queue. Idle threads that were notified before count until they wake,
// hence the comparison with the queue's length.
void ThreadPool::dispatch_locked() {
  if (idle_ >= static_cast<int>(queue_.size())) {
    work_available_.notify_one();
  } else if (active_locked() < options_.num_threads && total_ < options_.max_threads) {
    start_worker_locked();
  } else if (supervisor_sleeps_) {
    supervisor_wakes_.notify_one();
  }
}

void ThreadPool::start_worker_locked() {
  ++total_;
  workers_.emplace_back();
  auto self = std::prev(workers_.end());
  self->thread = std::thread([this, self] { work(self); });
}

void ThreadPool::work(std::list<Worker>::iterator self) {
  pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
  set_current(this);
  mutex_.lock();
  while (true) {
    while (queue_.empty() && !stopping_ && active_locked() <= options_.num_threads) {
      ++idle_;
      work_available_.wait(mutex_);
      --idle_;
    }
    if (queue_.empty()) break;
    Task task = std::move(queue_.front());
    queue_.pop_front();
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
  if (stopping_) work_available_.notify_all();
  if (supervisor_sleeps_) supervisor_wakes_.notify_one();
  mutex_.unlock();
}

void ThreadPool::supervise() {
  pthread_setname_np(pthread_self(), "pool-watch");
  mutex_.lock();
  while (!stopping_ || total_ > 0) {
    if (!ended_.empty()) {
      mutex_.unlock();
      reap();
      mutex_.lock();
      continue;
    }
    if (static_cast<int>(queue_.size()) <= idle_) {
      supervisor_sleeps_ = true;
      supervisor_wakes_.wait(mutex_);
      supervisor_sleeps_ = false;
      continue;
    }
    const uint64_t started = started_;
    supervisor_wakes_.wait_for(mutex_, options_.stall_limit);
    if (started == started_ && static_cast<int>(queue_.size()) > idle_ && total_ < options_.max_threads) {
      start_worker_locked();
    }
  }
  mutex_.unlock();
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
    work_available_.notify_all();
    supervisor_wakes_.notify_all();
  }
  if (supervisor_.joinable()) supervisor_.join();
  reap();
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
  if (active_locked() == 1 && total_ >= options_.max_threads) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", options_.max_threads, " threads of the pool \"", options_.name,
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
