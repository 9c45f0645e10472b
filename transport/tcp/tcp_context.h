#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "transport/buffer_pool.h"
#include "transport/event_loop.h"
#include "transport/tcp/tcp_transport.h"

namespace gradwire::transport {

class TcpConnection;

// What a tcp transport shares with its connections, some of which live longer than it.
struct TcpContext {
  TcpContext(TcpOptions given, std::shared_ptr<EventLoop> given_loop)
      : options(std::move(given)), pool(options.pool), loop(std::move(given_loop)) {}

  const TcpOptions options;
  BufferPool pool;
  // Set before the first connection.
  std::shared_ptr<EventLoop> loop;
  // The transport has shut down and its last connection is gone.
  std::atomic<bool> ended{false};

  // Those below belong to the loop's driver.

  // Every connection whose on_closed has not come.
  absl::flat_hash_set<std::shared_ptr<TcpConnection>> connections;
  bool shutting_down = false;

  void end_if_done_in_loop() {
    if (shutting_down && connections.empty()) ended = true;
  }
};

}  // namespace gradwire::transport
