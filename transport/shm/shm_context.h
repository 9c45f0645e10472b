#pragma once

#include <memory>
#include <utility>

#include "gradwire/security/local_peer/user_guard.h"
#include "gradwire/transport/common/loop_context.h"
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::transport {

// The state that a shared memory transport shares with its connections.
struct ShmContext : LoopContext {
  ShmContext(ShmOptions given, std::shared_ptr<EventLoop> given_loop)
      : LoopContext(given.pool, std::move(given_loop)),
        options(std::move(given)),
        users(options.allowed_users),
        counters(options.counters != nullptr ? options.counters : std::make_shared<ShmCounters>()) {
    introduction_timeout = options.introduction_timeout;
  }

  const ShmOptions options;
  // Used only by the loop's driver.
  security::UserGuard users;
  const std::shared_ptr<ShmCounters> counters;
};

}  // namespace gradwire::transport
