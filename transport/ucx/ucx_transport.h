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
  // What arrives is checked against them before memory is allocated; send() refuses what is over them.
  Limits limits;
  // The address or name of the interface to listen on; empty: all, with IPv4 (UCX 1.13 cannot have both
  // families).
  std::string bind_address;
  // 0: any free one.
  int port = 0;
  // The host that others are told to connect to, as TcpOptions has it.
  std::string advertised_host;
  // Where received buffers come from; nullptr: a pool of its own.
  std::shared_ptr<BufferPool> pool;
  // What UCX may move bytes with, in the words of its variable UCX_TLS ("tcp", "self,sm,tcp", "rc,sm", ...).
  // Empty: what that variable says, or all.
  std::string methods;
  // What a connection has handed to UCX and that has not left yet; what is beyond waits in the connection's
  // queue. One message may be larger.
  std::size_t max_posted_bytes = std::size_t{64} << 20;
  // Once a connection has ended, the memory that the other end may still be reading is kept for at most so
  // long.
  absl::Duration linger_time = absl::Seconds(2);
  // How the transport's own thread waits, if it has one.
  WaitPolicy wait;
};

// Connections over UCX, which chooses by itself what to move bytes with: InfiniBand, RoCE, shared memory,
// TCP. Addresses are those of tcp, "host:port" or several of them; connections are made over TCP.
//
// send() copies buffers below 64 KiB and borrowed ones of any size; what is larger and owned is read where it
// lies, by rendezvous, into memory of the other end's pool. Whoever drives `loop` sends, receives and
// delivers; without a loop the transport has one of its own, and a thread that drives it, from listen() or
// connect() on.
//
// UCX trusts the processes that it talks to: what it does with the bytes of its own protocols is not checked
// here. It reads the environment's UCX_ variables.
std::unique_ptr<Transport> make_ucx_transport(UcxOptions options = UcxOptions(),
                                              std::shared_ptr<EventLoop> loop = nullptr);

// Whether UCX starts here: Unavailable with the cause.
absl::Status probe_ucx();

}  // namespace gradwire::transport
