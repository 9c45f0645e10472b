#pragma once

#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::transport {

// A thread that drives an event loop until it ends, for transports that nobody else drives. It looks for what
// comes for as long as `policy` says, then sleeps. Not thread-safe.
class LoopThread {
 public:
  LoopThread() = default;
  ~LoopThread() { join(); }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  // Once. Unavailable when the system has no thread left.
  absl::Status start(std::shared_ptr<EventLoop> loop, WaitPolicy policy);
  // For a transport: makes `loop` and drives it where nobody gave one; does nothing otherwise. Unavailable as
  // above, and then `loop` is as it was.
  absl::Status provide(std::shared_ptr<EventLoop>& loop, WaitPolicy policy);
  // Ends the loop that provide() made, if any, and joins.
  void end();
  // Waits until the loop has ended, which some task's end_in_loop() brings about. Not from the thread itself.
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
  std::shared_ptr<EventLoop> own_loop_;
};

}  // namespace gradwire::transport
