#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/queue/ticket_lock.h"

namespace gradwire::collectives {

// Runs tasks in order on one thread, which the first task starts. A task draws its ticket of the group's
// ticket_lock when it is pushed, so that what comes later waits behind it. Thread-safe.
class AsyncQueue {
 public:
  // Waits for the ticket and gives it back; `note` is what was noted.
  using Task = absl::AnyInvocable<void(uint64_t ticket, uint64_t note)>;

  AsyncQueue() : state_(std::make_shared<State>()) {}
  // As close(); on the thread itself, the thread ends later.
  ~AsyncQueue();

  // False after close(): the task has not been taken. `note` is called with the ticket before the task can
  // run.
  bool push(TicketLock& ticket_lock, Task task, absl::FunctionRef<uint64_t(uint64_t ticket)> note);
  // Takes no more tasks; those that it has run. Returns at once.
  void close();
  // Until the thread has ended. Not on the thread itself. REQUIRES: close() was called.
  void join();
  bool on_thread() const { return state_->id.load() == std::this_thread::get_id(); }

 private:
  struct Entry {
    uint64_t ticket = 0;
    uint64_t note = 0;
    Task task;
  };
  struct State {
    Mutex mutex;
    CondVar changed;
    std::deque<Entry> tasks ABSL_GUARDED_BY(mutex);
    bool closed ABSL_GUARDED_BY(mutex) = false;
    std::atomic<std::thread::id> id{};
  };
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  Mutex thread_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(thread_mutex_);
};

}  // namespace gradwire::collectives
