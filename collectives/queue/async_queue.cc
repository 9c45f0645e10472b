#include "gradwire/collectives/queue/async_queue.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/process/start_thread.h"

namespace gradwire::collectives {

// A task may hold the last reference to the owner of this queue. Then the destructor runs on the queue's own
// thread, which cannot join itself. The thread uses only the State, which it keeps alive, and ends after the
// last task.
AsyncQueue::~AsyncQueue() {
  if (!state_->mark.here()) {
    leak_after_fork(thread_);
    return;
  }
  close();
  if (!on_thread()) {
    join();
    return;
  }
  MutexLock lock(thread_mutex_);
  thread_.detach();
}

absl::Status AsyncQueue::push(TicketLock& ticket_lock, Task task,
                              absl::FunctionRef<uint64_t(uint64_t ticket)> note) {
  GRADWIRE_RETURN_IF_ERROR(state_->mark.check("a process group"));
  // Held until the thread has been started, so that only one thread is started.
  MutexLock starting(thread_mutex_);
  // Whatever may fail comes before the ticket is taken: the group would wait for a ticket that nobody leaves.
  if (!thread_.joinable() && !closed()) {
    GRADWIRE_ASSIGN_OR_RETURN(thread_, start_thread("async-queue", [state = state_] { run(state); }));
  }
  MutexLock lock(state_->mutex);
  if (state_->closed) return absl::FailedPreconditionError("the queue is closed");
  Entry& added = state_->tasks.emplace_back();
  // The ticket is taken and the task is queued in one step, under one lock. So the tasks are in the order of
  // their tickets. A later ticket in front of an earlier one would block the thread for good.
  added.ticket = ticket_lock.take();
  added.note = note(added.ticket);
  added.task = std::move(task);
  state_->changed.notify_one();
  return absl::OkStatus();
}

bool AsyncQueue::closed() const {
  MutexLock lock(state_->mutex);
  return state_->closed;
}

void AsyncQueue::close() {
  if (!state_->mark.here()) return;
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
    run_contained("an operation of a process group", [&] { next.task(next.ticket, next.note); });
    if (!state->mark.here()) end_forked_child("the thread of a process group");
    // `next` ends here: the task and the objects that it holds are destroyed before the next wait.
  }
}

}  // namespace gradwire::collectives
