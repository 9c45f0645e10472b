#include "gradwire/collectives/queue/async_queue.h"

#include <utility>

namespace gradwire::collectives {

AsyncQueue::~AsyncQueue() {
  close();
  if (!on_thread()) {
    join();
    return;
  }
  MutexLock lock(thread_mutex_);
  thread_.detach();
}

bool AsyncQueue::push(TicketLock& ticket_lock, Task task, absl::FunctionRef<uint64_t(uint64_t ticket)> note) {
  // Held while the thread is started, so that one is.
  MutexLock starting(thread_mutex_);
  {
    MutexLock lock(state_->mutex);
    if (state_->closed) return false;
    const uint64_t ticket = ticket_lock.take();
    state_->tasks.push_back({ticket, note(ticket), std::move(task)});
    state_->changed.notify_one();
  }
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { run(state); });
  return true;
}

void AsyncQueue::close() {
  MutexLock lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_one();
}

void AsyncQueue::join() {
  std::thread thread;
  {
    MutexLock lock(thread_mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void AsyncQueue::run(const std::shared_ptr<State>& state) {
  state->id.store(std::this_thread::get_id());
  for (;;) {
    Entry next;
    {
      MutexLock lock(state->mutex);
      while (state->tasks.empty() && !state->closed) state->changed.wait(state->mutex);
      if (state->tasks.empty()) return;
      next = std::move(state->tasks.front());
      state->tasks.pop_front();
    }
    // Destroyed, with what it holds, before the next one is waited for.
    next.task(next.ticket, next.note);
  }
}

}  // namespace gradwire::collectives
