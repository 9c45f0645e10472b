#pragma once

#include <cassert>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/fork.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::transport {

// A thread that drives an event loop until the loop ends, for transports whose loop has no other driver. It
// polls for the time that `policy` allows, then sleeps. Not thread-safe.
class LoopThread {
 public:
  LoopThread() = default;
  ~LoopThread() {
    join();
    if (!mark_.here()) leak_after_fork(thread_);
  }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  // Starts the thread. Must be called at most once. ResourceExhausted if the system has no threads left.
  absl::Status start(std::shared_ptr<EventLoop> loop, WaitPolicy policy);
  // For a transport: if `loop` is null, creates a loop and drives it; otherwise does nothing. Errors as
  // above; then `loop` is unchanged.
  absl::Status provide(std::shared_ptr<EventLoop>& loop, WaitPolicy policy);
  // Ends the loop that provide() created, if any, and joins the thread.
  void end();
  // Waits until the loop has ended, which a task causes with end_in_loop(). Must not be called from the
  // thread itself.
  void join() {
    if (!mark_.here() || !thread_.joinable()) return;
    assert(!on_duty());
    thread_.join();
  }

 private:
  const ProcessMark mark_;
  std::thread thread_;
  std::shared_ptr<EventLoop> own_loop_;
};

}  // namespace gradwire::transport
