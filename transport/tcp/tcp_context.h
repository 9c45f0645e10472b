#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/base/clock.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/preface.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::transport {

class Arrival;
class TcpConnection;

// What a tcp transport shares with its connections, some of which live longer than it.
struct TcpContext : std::enable_shared_from_this<TcpContext> {
  TcpContext(TcpOptions given, std::shared_ptr<EventLoop> given_loop)
      : options(std::move(given)),
        pool(options.pool != nullptr ? options.pool : std::make_shared<BufferPool>()),
        loop(std::move(given_loop)) {}

  const TcpOptions options;
  const std::shared_ptr<BufferPool> pool;
  // Set before the first connection.
  std::shared_ptr<EventLoop> loop;
  // The transport has shut down and its last connection is gone.
  std::atomic<bool> ended{false};

  // Those below belong to the loop's driver.

  // Every connection whose on_closed has not come.
  absl::flat_hash_set<std::shared_ptr<TcpConnection>> connections;
  // Those that were accepted; what arrives with the token of one is its stripe.
  absl::flat_hash_map<Preface::Token, TcpConnection*> by_token;
  absl::flat_hash_set<std::shared_ptr<Arrival>> arrivals;
  bool shutting_down = false;

  void end_if_done_in_loop() {
    if (!shutting_down || !connections.empty()) return;
    loop->cancel_in_loop(pool_timer_);
    ended = true;
  }

  // The pool has given memory: sees to it that it gives back what is not used for a while.
  void tend_pool_in_loop() {
    if (pool_timer_ != 0) return;
    pool_timer_ =
        loop->schedule_in_loop(Clock::system().now() + pool->options().idle_time, [weak = weak_from_this()] {
          const std::shared_ptr<TcpContext> self = weak.lock();
          if (self == nullptr) return;
          self->pool_timer_ = 0;
          self->pool->trim(Clock::system().now());
          if (self->pool->idle_bytes() > 0) self->tend_pool_in_loop();
        });
  }

 private:
  uint64_t pool_timer_ = 0;
};

}  // namespace gradwire::transport
