#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/threads/spin_wait.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

struct UcxOptions {
  // Received data is checked against these limits before memory is allocated; send() fails for messages over
  // them.
  Limits limits;
  // The address or name of the interface to listen on; empty: all interfaces, IPv4 only (UCX 1.13 cannot
  // listen on both address families).
  std::string bind_address;
  // The port to listen on; 0: any free port.
  int port = 0;
  // The host to which other processes connect; see TcpOptions.
  std::string advertised_host;
  // The pool for received buffers; nullptr: the transport creates one.
  std::shared_ptr<BufferPool> pool;
  // The methods that UCX may use, in the syntax of its variable UCX_TLS ("tcp", "self,sm,tcp", "rc,sm", ...).
  // Empty: the value of that variable, or all methods.
  std::string methods;
  // Maximum number of unsent bytes of a connection that are passed to UCX; further messages wait in the
  // connection's queue. A single message may be larger.
  std::size_t max_posted_bytes = std::size_t{64} << 20;
  // After a connection is closed, the memory that the peer may still be reading is kept for at most this
  // time.
  absl::Duration linger_time = absl::Seconds(2);
  // The wait policy of the transport's own thread, if it has one.
  WaitPolicy wait;
};

// Connections over UCX, which chooses the method of transfer: InfiniBand, RoCE, shared memory, TCP. Addresses
// are those of tcp, "host:port" or a list of these; connections are established over TCP.
//
// send() copies buffers below 64 KiB, and borrowed buffers of any size. Larger owned buffers are read in
// place by rendezvous, into memory of the peer's pool. The driver of `loop` sends, receives and delivers.
// Without `loop` the transport creates a loop and a thread that drives it, at the first listen() or
// connect().
//
// UCX trusts its peers: this transport does not check the bytes of UCX's own protocols. UCX reads the
// environment variables UCX_*.
std::unique_ptr<Transport> make_ucx_transport(UcxOptions options = UcxOptions(),
                                              std::shared_ptr<EventLoop> loop = nullptr);

// Checks whether UCX starts on this host: Unavailable with the cause.
absl::Status probe_ucx();

}  // namespace gradwire::transport
