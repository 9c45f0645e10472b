#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire {
class ThreadPool;
}

namespace gradwire::store {

// The event loop of a TcpStore's server, of its client, or of a master's both, and the thread that drives it
// when nobody who waits for an answer does so himself. It sleeps while nothing comes.
//
// A Future whose Promise was made with executor() is waited for by driving the loop: an answer that comes
// soon wakes no thread. Thread-safe. Destroyed when all transports on the loop have shut down, and not on its
// own thread.
class StoreLoop {
 public:
  // `name` is the thread's. Unavailable when the system has no descriptor or thread left.
  static absl::StatusOr<std::shared_ptr<StoreLoop>> create(const std::string& name);
  ~StoreLoop();
  StoreLoop(const StoreLoop&) = delete;
  StoreLoop& operator=(const StoreLoop&) = delete;

  const std::shared_ptr<transport::EventLoop>& loop() const { return loop_; }
  std::shared_ptr<Executor> executor() const;

 private:
  StoreLoop(std::shared_ptr<transport::EventLoop> loop, std::shared_ptr<ThreadPool> pool);

  const std::shared_ptr<transport::EventLoop> loop_;
  const std::shared_ptr<ThreadPool> pool_;
};

}  // namespace gradwire::store
