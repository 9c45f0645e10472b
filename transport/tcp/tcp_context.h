#pragma once

#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "transport/buffer_pool.h"
#include "transport/tcp/reactor.h"
#include "transport/tcp/tcp_transport.h"

namespace gradwire::transport {

class TcpConnection;

// What a tcp transport shares with its connections, some of which live longer than it.
struct TcpContext {
  explicit TcpContext(TcpOptions given) : options(std::move(given)), pool(options.pool) {}

  const TcpOptions options;
  BufferPool pool;
  Reactor reactor;

  // Those below belong to the reactor's thread.

  // Every connection whose on_closed has not come.
  absl::flat_hash_set<std::shared_ptr<TcpConnection>> connections;
  bool shutting_down = false;

  // Ends the reactor when the last connection of a transport that shuts down is gone.
  void end_if_done_in_loop() {
    if (shutting_down && connections.empty()) reactor.end_in_loop();
  }
};

}  // namespace gradwire::transport
