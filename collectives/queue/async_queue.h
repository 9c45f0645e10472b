#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/queue/ticket_lock.h"

namespace gradwire::collectives {

// Runs tasks in order on one thread, which the first push starts. push() takes the task's ticket of the
// group's TicketLock, so every operation that is called later waits behind the task. Thread-safe.
class AsyncQueue {
 public:
  // A task must wait for `ticket` and leave it. `note`: the value that the `note` function of push()
  // returned.
  using Task = absl::AnyInvocable<void(uint64_t ticket, uint64_t note)>;

  AsyncQueue() : state_(std::make_shared<State>()) {}
  // Calls close() and join(); does nothing in a forked child. On the queue's own thread it does not join:
  // that thread ends after its tasks.
  ~AsyncQueue();

  // Adds a task. Calls `note`, which must not throw, with the ticket before the task can run. After an error
  // the task was not added, and no ticket was taken: FailedPrecondition after close() and in a forked child,
  // ResourceExhausted if the system has no threads left.
  absl::Status push(TicketLock& ticket_lock, Task task, absl::FunctionRef<uint64_t(uint64_t ticket)> note);
  // Accepts no more tasks; the tasks in the queue still run. Returns at once.
  void close();
  // Waits until the thread has ended. Must not be called on that thread. REQUIRES: close() was called.
  void join();
  // Whether the calling thread is the queue's thread.
  bool on_thread() const { return state_->id.load() == std::this_thread::get_id(); }

 private:
  struct Entry {
    uint64_t ticket = 0;
    uint64_t note = 0;
    Task task;
  };
  struct State {
    const ProcessMark mark;
    Mutex mutex;
    CondVar changed;
    std::deque<Entry> tasks ABSL_GUARDED_BY(mutex);
    bool closed ABSL_GUARDED_BY(mutex) = false;
    std::atomic<std::thread::id> id{};
  };
  bool closed() const;
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  Mutex thread_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(thread_mutex_);
};

}  // namespace gradwire::collectives
