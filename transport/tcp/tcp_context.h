#pragma once

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/transport/common/loop_context.h"
#include "gradwire/transport/tcp/preface.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::transport {

class Arrival;
class TcpConnection;

// The state that a tcp transport shares with its connections.
struct TcpContext : LoopContext {
  TcpContext(TcpOptions given, std::shared_ptr<EventLoop> given_loop)
      : LoopContext(given.pool, std::move(given_loop)), options(std::move(given)) {
    introduction_timeout = options.introduction_timeout;
  }

  void shut_down_in_loop() override;

  const TcpOptions options;

  // The members below are used only by the loop's driver.

  // The accepted connections by token. A socket with the token of a connection is a stripe of it.
  absl::flat_hash_map<Preface::Token, TcpConnection*> by_token;
  absl::flat_hash_set<std::shared_ptr<Arrival>> arrivals;
};

// Sets the options of all sockets: no delay, keepalive, a timeout for unacknowledged bytes.
void set_connection_options(int socket, const TcpOptions& options);

}  // namespace gradwire::transport
