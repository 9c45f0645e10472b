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

// The event loop of a TcpStore's server, of its client, or of both in a master, and the thread that drives
// the loop. A thread that waits for an answer drives the loop itself; otherwise the loop's own thread does,
// and sleeps while nothing arrives.
//
// Waiting for a Future whose Promise was made with executor() drives the loop, so that an answer that arrives
// soon need not wake another thread. Thread-safe. Must be destroyed after all transports on the loop have
// shut down, and not on its own thread.
class StoreLoop {
 public:
  // `name` is the name of the thread. ResourceExhausted if the system has no descriptor or no thread
  // left.
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
