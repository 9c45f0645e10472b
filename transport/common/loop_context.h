#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::transport {

class LoopConnection;

// The state that a transport shares with its connections, some of which live longer than it. Each kind adds
// its own.
struct LoopContext : std::enable_shared_from_this<LoopContext> {
  // Makes a pool if `given_pool` is null.
  LoopContext(std::shared_ptr<BufferPool> given_pool, std::shared_ptr<EventLoop> given_loop)
      : pool(given_pool != nullptr ? std::move(given_pool) : std::make_shared<BufferPool>()),
        loop(std::move(given_loop)) {}
  virtual ~LoopContext() = default;

  // Ends the connections, unless they flush.
  virtual void shut_down_in_loop();
  // Called whenever a connection has ended: the transport ends after the last one, once it shuts down.
  virtual void end_if_done_in_loop();
  // The pool has given memory: sees to it that it gives back what is not used for a while. Any thread.
  void tend_pool();

  const std::shared_ptr<BufferPool> pool;
  // Tests set a shorter one, before the first connection.
  absl::Duration introduction_timeout = kIntroductionTimeout;
  // Set before the first connection.
  std::shared_ptr<EventLoop> loop;
  // The transport has shut down and its last connection is gone.
  std::atomic<bool> ended{false};

  // Those below belong to the loop's driver.

  // Every connection that has not ended.
  absl::flat_hash_set<std::shared_ptr<LoopConnection>> connections;
  bool shutting_down = false;

 private:
  void tend_pool_in_loop();

  std::atomic<bool> tending_pool_{false};
  uint64_t pool_timer_ = 0;
};

}  // namespace gradwire::transport
