#include "gradwire/collectives/queue/async_queue.h"

#include <utility>

namespace gradwire::collectives {

// A task may hold the last reference to the owner of this queue. Then the destructor runs on the queue's own
// thread, which cannot join itself. The thread uses only the State, which it keeps alive, and ends after the
// last task.
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
  // Held until the thread has been started, so that only one thread is started.
  MutexLock starting(thread_mutex_);
  {
    MutexLock lock(state_->mutex);
    if (state_->closed) return false;
    // The ticket is taken and the task is queued in one step, under one lock. So the tasks are in the order
    // of their tickets. A later ticket in front of an earlier one would block the thread for good.
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
      // After close() the remaining tasks still run: other users of the TicketLock wait for their tickets.
      if (state->tasks.empty()) return;
      next = std::move(state->tasks.front());
      state->tasks.pop_front();
    }
    next.task(next.ticket, next.note);
    // `next` ends here: the task and the objects that it holds are destroyed before the next wait.
  }
}

}  // namespace gradwire::collectives
