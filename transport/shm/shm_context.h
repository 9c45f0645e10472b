#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "transport/buffer_pool.h"
#include "transport/event_loop.h"
#include "transport/shm/shm_transport.h"

namespace gradwire::transport {

class ShmConnection;

// What a shared memory transport shares with its connections, some of which live longer than it.
struct ShmContext {
  ShmContext(ShmOptions given, std::shared_ptr<EventLoop> given_loop)
      : options(std::move(given)),
        counters(options.counters != nullptr ? options.counters : std::make_shared<ShmCounters>()),
        pool(options.pool),
        loop(std::move(given_loop)) {}

  const ShmOptions options;
  const std::shared_ptr<ShmCounters> counters;
  BufferPool pool;
  // Set before the first connection.
  std::shared_ptr<EventLoop> loop;
  // The transport has shut down and its last connection is gone.
  std::atomic<bool> ended{false};

  // Those below belong to the loop's driver.

  // Every connection that has not ended.
  absl::flat_hash_set<std::shared_ptr<ShmConnection>> connections;
  bool shutting_down = false;

  void end_if_done_in_loop() {
    if (shutting_down && connections.empty()) ended = true;
  }
};

}  // namespace gradwire::transport
