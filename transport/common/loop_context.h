#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::transport {

class LoopConnection;

// The state that a transport shares with its connections, some of which outlive it. Each kind of transport
// derives its own context.
struct LoopContext : std::enable_shared_from_this<LoopContext> {
  // Creates a pool if `given_pool` is null.
  LoopContext(std::shared_ptr<BufferPool> given_pool, std::shared_ptr<EventLoop> given_loop)
      : pool(given_pool != nullptr ? std::move(given_pool) : std::make_shared<BufferPool>()),
        loop(std::move(given_loop)) {}
  virtual ~LoopContext() = default;

  // Closes all connections except those that flush.
  virtual void shut_down_in_loop();
  // Called after a connection was closed. While the transport shuts down, it ends with its last connection.
  virtual void end_if_done_in_loop();
  // Must be called after an allocation from the pool: schedules calls of trim(), so that the pool returns
  // unused memory. May be called from any thread.
  void trim_pool();

  const std::shared_ptr<BufferPool> pool;
  // Tests set a shorter timeout, before the first connection.
  absl::Duration introduction_timeout = kIntroductionTimeout;
  // Set before the first connection is made.
  std::shared_ptr<EventLoop> loop;
  // The transport has shut down and its last connection is closed.
  std::atomic<bool> ended{false};

  // The members below are accessed only by the loop's driver.

  // All connections that are not closed.
  HashSet<std::shared_ptr<LoopConnection>> connections;
  bool shutting_down = false;

 private:
  void trim_pool_in_loop();

  std::atomic<bool> trimming_pool_{false};
  uint64_t pool_timer_ = 0;
};

}  // namespace gradwire::transport
