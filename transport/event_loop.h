#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/io/epoll.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/poller.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/transport/loop_sleep.h"
#include "gradwire/transport/polled_memory.h"
#include "gradwire/transport/turns/loop_timers.h"
#include "gradwire/transport/turns/turns.h"

namespace gradwire::transport {

// Handles the epoll events of one descriptor, on the thread that drives the loop.
class EventHandler {
 public:
  virtual ~EventHandler() = default;
  // `events`: EPOLLIN and similar flags. Edge-triggered: each change is reported once.
  virtual void on_events_in_loop(uint32_t events) = 0;
  // on_events_in_loop() has thrown, and will not see these events again: the handler must not wait for them.
  virtual void failed_in_loop(const absl::Status& error) = 0;
  // Whether more data is likely to follow soon on the descriptor itself. False for a descriptor that only
  // rings for a Pollable.
  virtual bool expects_more_events() const { return true; }
  // The Pollable for which the descriptor rings, or nullptr.
  virtual const Pollable* pollable() const { return nullptr; }
};

// Waits for descriptors, polled memory, timers and posted tasks, and runs their handlers one at a time, on
// the thread that drives the loop (base/threads/poller.h). An exception of one of them concerns only that
// one: tasks and timers are logged, and handlers get a call of failed_in_loop(). LoopThread is a thread that
// drives a loop permanently.
//
// States: open -> ended (end_in_loop). Methods with the suffix _in_loop may be called only on the thread that
// drives, which is also the thread that runs handlers and tasks. The loop shares the ownership of registered
// handlers until they are removed.
class EventLoop : public Poller, public LoopTimers {
 public:
  using Task = TimedTasks::Task;

  // ResourceExhausted, with the limit, if the system has no free descriptors. A loop uses four. `clock`: for
  // the time of a round; it must outlive the loop.
  static absl::StatusOr<std::shared_ptr<EventLoop>> create(const Clock& clock = Clock::system());

  // Runs `task` later. After the loop has ended, or in a forked child, returns false and never runs the task.
  bool post(Task task);

  // As post(), for those who conclude something from silence. Runs `task` after a round in which everything
  // was read that had arrived before this call, however busy the loop is.
  bool post_after_reading(Task task);

  // Returns when done() is true, in a forked child at once. Drives the loop meanwhile if no other thread
  // does. done() is called on this thread, soon after each event of the loop. Must not be called from a task
  // or handler of the loop.
  void run_until(const std::function<bool()>& done);

  // Ends the loop when no posted task is left. All registered handlers are then released.
  void end_in_loop() { ending_ = true; }
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // The thread that drives the loop, and what it does or has done last (note_duty). For a log line about a
  // thread that stands still: by the time that it is read, it may be over.
  struct Driver {
    pid_t thread = 0;  // 0 while no thread drives.
    const char* doing = nullptr;
  };
  Driver driver() const;

  // Calls `handler` when `fd` becomes readable, when the peer closes it, and, if `both_ways`, when it becomes
  // writable. (A Unix socket becomes writable whenever its peer reads, which would wake the sleeping thread
  // without need.) Returns an id for remove_in_loop().
  absl::StatusOr<uint64_t> add_in_loop(int fd, std::shared_ptr<EventHandler> handler, bool both_ways = true);
  // Must be called before the descriptor is closed. Events that were already collected are dropped.
  void remove_in_loop(int fd, uint64_t id);

  // Runs a step of a handler, and calls failed_in_loop() after an exception. For the later steps, which
  // deferred tasks, timers and other handlers take: an exception that leaves these does not reach the
  // handler.
  static void run_in_loop(EventHandler& handler, absl::FunctionRef<void()> step) noexcept;
  // The same for on_events_in_loop().
  static void handle_in_loop(EventHandler& handler, uint32_t events) noexcept;

  // Starts to poll `pollable`, because data is expected there soon. Very cheap if it is already polled. May
  // be called from any thread.
  void activate(const std::shared_ptr<Pollable>& pollable) { memory_.activate(pollable); }
  // Stops to poll `pollable`. REQUIRES: activate() is not called with it any more.
  void forget_in_loop(const Pollable& pollable) { memory_.forget_in_loop(pollable); }

  // The time that handlers may use in this round, and the work that they leave for later ones.
  Turns& turns_in_loop() { return turns_; }

  // Scratch memory for a handler that reads more bytes than it has a buffer for. Its contents are valid
  // during the call of the handler.
  absl::Span<char> scratch_in_loop() { return absl::MakeSpan(scratch_); }

  // Poller
  bool try_enter() noexcept override;
  Found poll() noexcept override;
  void leave() noexcept override;
  void pause(bool several) noexcept override;
  void flush() noexcept override;
  bool wanted() const override { return wanted_.load(std::memory_order_relaxed) > 0; }
  void want(bool yes) override { wanted_.fetch_add(yes ? 1 : -1, std::memory_order_relaxed); }
  void sleep(absl::Duration at_most) override { sleep_.sleep(ended_, at_most); }
  void wake() override { sleep_.wake(); }

 private:
  EventLoop(Epoll events, Epoll sleep, const Clock& clock);

  bool run_posted_in_loop();
  Found poll_descriptors_in_loop();
  void run_after_reading_in_loop(std::size_t count);
  void finish_in_loop();

  const ProcessMark mark_;

  // These are accessed only by the driver.
  HashMap<uint64_t, std::shared_ptr<EventHandler>> handlers_;
  uint64_t next_id_ = 2;
  Turns turns_;
  bool ending_ = false;
  std::vector<char> scratch_;
  uint32_t rounds_ = 0;
  // The last round in which memory had data.
  uint32_t data_round_ = 0;
  // Number of further rounds in which descriptors are polled, because they had events recently.
  int descriptor_rounds_ = 0;
  // Whether the last poll of the descriptors has left events for the next one.
  bool descriptors_left_ = false;
  // Tasks that run at the end of the first round in which no event is left.
  std::vector<Task> after_reading_;

  // The epoll instance of all descriptors.
  const Epoll events_;
  const Signal posted_signal_;

  std::atomic<bool> driven_{false};
  std::atomic<pid_t> driver_{0};
  std::atomic<const char*> doing_{nullptr};
  std::atomic<int> wanted_{0};
  std::atomic<bool> ended_{false};
  // A thread drives, or has paused and will soon drive again, so posted_ will be checked. Orders post() and
  // leave(); see post().
  std::atomic<bool> will_be_polled_{false};
  std::atomic<bool> has_posted_{false};

  PolledMemory memory_;
  LoopSleep sleep_;

  Mutex mutex_;
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
  // The tasks of posted_ in the round that runs them. The two lists exchange their memory, so that posting
  // rarely needs more. Only for the driver.
  std::vector<Task> running_;
};

// Ends the loop from outside of it, and returns when it has ended. Drives it if no other thread does. The
// owner of a loop calls this last: tasks and handlers that are left may own the loop, which would then never
// be destroyed.
void end(EventLoop& loop);

}  // namespace gradwire::transport
