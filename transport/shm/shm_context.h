#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "gradwire/base/clock.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::transport {

class ShmConnection;

// What a shared memory transport shares with its connections, some of which live longer than it.
struct ShmContext : std::enable_shared_from_this<ShmContext> {
  ShmContext(ShmOptions given, std::shared_ptr<EventLoop> given_loop)
      : options(std::move(given)),
        counters(options.counters != nullptr ? options.counters : std::make_shared<ShmCounters>()),
        pool(options.pool != nullptr ? options.pool : std::make_shared<BufferPool>()),
        loop(std::move(given_loop)) {}

  const ShmOptions options;
  const std::shared_ptr<ShmCounters> counters;
  const std::shared_ptr<BufferPool> pool;
  // Set before the first connection.
  std::shared_ptr<EventLoop> loop;
  // The transport has shut down and its last connection is gone.
  std::atomic<bool> ended{false};

  // Those below belong to the loop's driver.

  // Every connection that has not ended.
  absl::flat_hash_set<std::shared_ptr<ShmConnection>> connections;
  bool shutting_down = false;

  void end_if_done_in_loop() {
    if (!shutting_down || !connections.empty()) return;
    loop->cancel_in_loop(pool_timer_);
    ended = true;
  }

  // The pool has given memory: sees to it that it gives back what is not used for a while. Any thread.
  void tend_pool() {
    if (tending_pool_.load(std::memory_order_relaxed) || tending_pool_.exchange(true)) return;
    loop->post([weak = weak_from_this()] {
      if (const std::shared_ptr<ShmContext> self = weak.lock()) self->tend_pool_in_loop();
    });
  }

 private:
  void tend_pool_in_loop() {
    if (ended) return;
    pool_timer_ =
        loop->schedule_in_loop(Clock::system().now() + pool->options().idle_time, [weak = weak_from_this()] {
          const std::shared_ptr<ShmContext> self = weak.lock();
          if (self == nullptr) return;
          self->pool->trim(Clock::system().now());
          if (self->pool->idle_bytes() > 0) {
            self->tend_pool_in_loop();
          } else {
            self->tending_pool_.store(false);
          }
        });
  }

  std::atomic<bool> tending_pool_{false};
  uint64_t pool_timer_ = 0;
};

}  // namespace gradwire::transport
