#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "gradwire/base/threads/spin_wait.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

struct TcpOptions {
  // What arrives is checked against them before memory is allocated; send() refuses what is over them.
  Limits limits;
  // The address or name of the interface to listen on; empty: all, IPv4 and IPv6.
  std::string bind_address;
  // 0: any free one.
  int port = 0;
  // The host that others are told to connect to. Empty: bind_address if there is one, else
  // GRADWIRE_HOST_ADDRESS, else what transport/tcp/address.h finds.
  std::string advertised_host;
  // Where received buffers come from; nullptr: a pool of its own.
  std::shared_ptr<BufferPool> pool;
  // Further sockets that a connection opens, at most 8, when it first has a large buffer to send, and closes
  // when it has had none for a while. 0: none, from neither end.
  int stripes = 0;
  // Buffers from this size on travel over all of its sockets at once; at least 64 KiB.
  std::size_t stripe_from_bytes = std::size_t{4} << 20;
  absl::Duration stripe_idle_time = absl::Seconds(10);
  // A silent connection is probed after this long, and then this often; several probes without an answer end
  // it.
  absl::Duration keepalive_idle = absl::Seconds(10);
  absl::Duration keepalive_interval = absl::Seconds(5);
  // How long bytes may stay unacknowledged, or a receiver that is alive may read nothing, before the
  // connection ends.
  absl::Duration user_timeout = absl::Seconds(30);
  // For a process that has connected to introduce itself; shorter in tests.
  absl::Duration introduction_timeout = kIntroductionTimeout;
  // How the transport's own thread waits, if it has one.
  WaitPolicy wait;
};

// Connections over TCP. Addresses are "host:port", or several with commas between, tried in order; a host
// name is looked up on the thread that calls connect().
//
// Whoever drives `loop` reads and delivers; without a loop the transport has one of its own, and a thread
// that drives it, from listen() or connect() on. A sender writes on its own thread as far as the socket takes
// it. Uses one descriptor per connection, and one to listen.
std::unique_ptr<Transport> make_tcp_transport(TcpOptions options = TcpOptions(),
                                              std::shared_ptr<EventLoop> loop = nullptr);

}  // namespace gradwire::transport
