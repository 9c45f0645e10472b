#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "transport/tcp/descriptor.h"

namespace gradwire::transport {

// Hears what epoll says about one descriptor, on the reactor's thread.
class EventHandler {
 public:
  virtual ~EventHandler() = default;
  // `events`: EPOLLIN and its like. Edge-triggered: each change is told once.
  virtual void on_events_in_loop(uint32_t events) = 0;
};

// One thread that waits for descriptors, times and posted tasks and runs what belongs to them, one at a time.
//
// States: new -> running (start) -> stopped (stop). post() may be called on any thread; methods whose names
// end in _in_loop only on the reactor's own. The reactor shares the handlers that are registered, until they
// are removed.
class Reactor {
 public:
  using Task = absl::AnyInvocable<void()>;

  Reactor() = default;
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Starts the thread; once. Unavailable when the system has no thread or descriptor left.
  absl::Status start();
  // Waits until the thread has ended, which some task's end_in_loop() brings about. Not from the reactor's
  // thread.
  void join();

  // Runs `task` later. False, without running it ever, when the reactor is not running.
  bool post(Task task);

  // Lets the thread end as soon as no task is posted.
  void end_in_loop() { ending_ = true; }

  // Tells `handler` about changes of `fd`. Returns an id for remove_in_loop.
  absl::StatusOr<uint64_t> add_in_loop(int fd, std::shared_ptr<EventHandler> handler);
  // Call it before the descriptor is closed. Events that have already been collected are dropped.
  void remove_in_loop(int fd, uint64_t id);

  // Runs `task` at `when` of Clock::system(); never for InfiniteFuture (and returns 0).
  uint64_t schedule_in_loop(absl::Time when, Task task);
  void cancel_in_loop(uint64_t timer);

  // Scratch memory for what a handler reads beyond what it knows a place for. Its contents last as long as
  // the call.
  absl::Span<char> scratch_in_loop() { return absl::MakeSpan(scratch_); }

 private:
  void run();
  void run_due_timers();
  // False when the thread is to end.
  bool run_posted();
  int wait_milliseconds();

  // Used by the loop alone.
  absl::flat_hash_map<uint64_t, std::shared_ptr<EventHandler>> handlers_;
  uint64_t next_id_ = 1;
  std::map<std::pair<absl::Time, uint64_t>, Task> timers_;
  absl::flat_hash_map<uint64_t, absl::Time> timer_times_;
  uint64_t next_timer_ = 1;
  bool ending_ = false;
  std::vector<char> scratch_;
  Descriptor epoll_;

  Mutex mutex_;
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  Descriptor wake_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
