#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/base/io/epoll.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/poller.h"
#include "gradwire/base/threads/timed_tasks.h"
#include "gradwire/transport/loop_sleep.h"
#include "gradwire/transport/polled_memory.h"

namespace gradwire::transport {

// Hears what epoll says about one descriptor, on the thread that drives the loop.
class EventHandler {
 public:
  virtual ~EventHandler() = default;
  // `events`: EPOLLIN and its like. Edge-triggered: each change is told once.
  virtual void on_events_in_loop(uint32_t events) = 0;
  // Whether more is likely to follow soon on the descriptor itself; not for one that only rings for a
  // Pollable.
  virtual bool brings_more() const { return true; }
};

// Descriptors, polled memory, times and posted tasks, and what is to run when they are due, one thing at a
// time, on whichever thread drives (base/threads/poller.h). LoopThread is a thread that drives one for good.
//
// States: open -> ended (end_in_loop). Methods whose names end in _in_loop are for the thread that drives,
// which is the one that runs handlers and tasks. The loop shares the handlers that are registered, until they
// are removed.
class EventLoop : public Poller {
 public:
  using Task = TimedTasks::Task;

  // Unavailable when the system has no descriptor left. Uses four.
  static absl::StatusOr<std::shared_ptr<EventLoop>> create();

  // Runs `task` later. False, without running it ever, once the loop has ended.
  bool post(Task task);

  // Returns when done() is true; drives meanwhile if nobody else does. done() is asked on this thread, and
  // soon after anything happens in the loop. Not from a task or handler of the loop.
  void run_until(const std::function<bool()>& done);

  // Ends the loop as soon as no task is posted; what is still registered is let go.
  void end_in_loop() { ending_ = true; }
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // Tells `handler` when there is something to read from `fd`, its end, and where `both_ways` that it takes
  // more (a unix socket says so whenever its other end reads, which wakes the sleeping thread for nothing).
  // Returns an id for remove_in_loop.
  absl::StatusOr<uint64_t> add_in_loop(int fd, std::shared_ptr<EventHandler> handler, bool both_ways = true);
  // Call it before the descriptor is closed. Events that have already been collected are dropped.
  void remove_in_loop(int fd, uint64_t id);

  // Makes `pollable` hot: something is expected there soon. Costs next to nothing when it is. Any thread.
  void activate(const std::shared_ptr<Pollable>& pollable) { memory_.activate(pollable); }
  // It is looked at no more. REQUIRES: nobody calls activate() with it any more.
  void forget_in_loop(const Pollable& pollable) { memory_.forget_in_loop(pollable); }

  // Runs `task` at `when` of Clock::system(); never for InfiniteFuture (and returns 0).
  uint64_t schedule_in_loop(absl::Time when, Task task) { return timers_.add(when, std::move(task)); }
  void cancel_in_loop(uint64_t timer) { (void)timers_.take(timer); }

  // Scratch memory for what a handler reads beyond what it knows a place for. Its contents last as long as
  // the call.
  absl::Span<char> scratch_in_loop() { return absl::MakeSpan(scratch_); }

  // Poller
  bool try_enter() override;
  bool poll() override;
  void leave() override;
  void pause(bool several) override;
  void flush() override;
  bool wanted() const override { return wanted_.load(std::memory_order_relaxed) > 0; }
  void want(bool yes) override { wanted_.fetch_add(yes ? 1 : -1, std::memory_order_relaxed); }
  void sleep() override { sleep_.sleep(ended_); }
  void wake() override { sleep_.wake(); }

 private:
  EventLoop(Epoll events, Epoll sleep);

  bool run_posted_in_loop();
  bool poll_descriptors_in_loop();
  void finish_in_loop();

  // Used by the driver alone.
  absl::flat_hash_map<uint64_t, std::shared_ptr<EventHandler>> handlers_;
  uint64_t next_id_ = 2;
  TimedTasks timers_;
  bool ending_ = false;
  std::vector<char> scratch_;
  uint32_t rounds_ = 0;
  // Rounds for which descriptors are looked at each time, because they have brought something lately.
  int busy_descriptors_ = 0;

  // Watches all descriptors.
  const Epoll events_;
  const Signal posted_signal_;

  std::atomic<bool> driven_{false};
  std::atomic<int> wanted_{0};
  std::atomic<bool> ended_{false};
  // Somebody looks at posted_ before long. Orders post() and leave().
  std::atomic<bool> attended_{false};
  std::atomic<bool> has_posted_{false};

  PolledMemory memory_;
  LoopSleep sleep_;

  Mutex mutex_;
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
