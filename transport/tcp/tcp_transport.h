#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// Another protocol at the port of a transport. A socket that begins with its first bytes is not a connection
// of the transport.
struct OtherProtocol {
  // At least one, and fewer than those of a preface, whose first byte is another one.
  std::string first_bytes;
  // Takes over such a socket, from which these bytes have been read. `peer` is its address, for messages.
  // Called on the thread that drives the loop.
  std::function<void(Descriptor socket, const std::string& peer)> take_in_loop;
};

struct TcpOptions {
  // Received data is checked against these limits before memory is allocated; send() fails for messages over
  // them.
  Limits limits;
  // The proof of this process, and the proof that it demands of others; nullptr: no_credentials(). Without
  // credentials nothing leaves this host: listen() and connect() accept only addresses of the loopback
  // interface. With certificates there are no stripes.
  security::CredentialsPtr credentials;
  // The use of the connections and the name of this process, for the handshake (security/credentials.h).
  std::string purpose;
  std::string own_name;
  // Without credentials only processes of this process's user may connect, and those of these users
  // (SecurityOptions::allowed_users).
  std::vector<uid_t> allowed_users;
  // The address or name of the interface to listen on; empty: all interfaces, IPv4 and IPv6. Without
  // credentials: the loopback interface.
  std::string bind_address;
  // The port to listen on; 0: any free port.
  int port = 0;
  // The host to which other processes connect. Empty: bind_address if it is set, else GRADWIRE_HOST_ADDRESS,
  // else the host that transport/tcp/socket/address.h finds. Without credentials it is the loopback address.
  std::string advertised_host;
  // Looks up the names of hosts to which connections are made. It is called on threads of the transport, and
  // may block. Empty: look_up_host().
  HostLookup look_up;
  // The pool for received buffers; nullptr: the transport creates one.
  std::shared_ptr<BufferPool> pool;
  // Number of stripes: additional sockets of a connection, at most 8. They are opened when the connection
  // first has a large buffer to send, and closed after a while without large buffers. 0: no stripes, in
  // neither direction.
  int stripes = 0;
  // Buffers of at least this size are sent over all sockets of the connection at once; at least 64 KiB.
  std::size_t stripe_from_bytes = std::size_t{4} << 20;
  absl::Duration stripe_idle_time = absl::Seconds(10);
  // An idle connection is probed after this time, and then at this interval. Several probes without an answer
  // close it.
  absl::Duration keepalive_idle = absl::Seconds(10);
  absl::Duration keepalive_interval = absl::Seconds(5);
  // The connection is closed if bytes stay unacknowledged, or a live receiver does not read, for this time.
  // Stripes are given up if the peer does not confirm them and sends nothing for this time.
  absl::Duration user_timeout = absl::Seconds(30);
  // The time in which a process that connects must introduce itself, and in which all stripes of a connection
  // must join it; shorter in tests.
  absl::Duration introduction_timeout = kIntroductionTimeout;
  // Served at the same port; nullptr: none. Its sockets have proved nothing, also with a token or
  // certificates: it must decide itself which of them it serves.
  std::shared_ptr<const OtherProtocol> other_protocol;
  // The wait policy of the transport's own thread, if it has one.
  WaitPolicy wait;
};

// Connections over TCP. Addresses are "host:port" or a list of these separated by commas, which are tried in
// order. A host name is looked up on a thread of its own (socket/name_lookups.h), and a shutdown does not
// wait for it. If it is not found, on_closed() reports that. Without credentials listen() returns
// "127.0.0.1:port@network", so that connect() on another host reports the reason instead of reaching a
// stranger there.
//
// The driver of `loop` reads and delivers. Without `loop` the transport creates a loop and a thread that
// drives it, at the first listen() or connect(). A sender writes on its own thread as far as the socket has
// room. Uses one descriptor per connection, and one to listen (without credentials two: 127.0.0.1 and ::1).
//
// listen() and connect() return FailedPrecondition for an address that is not allowed without credentials,
// and connect() also for one on which a process of another host listens without credentials. For a host name
// on_closed() reports that it is not allowed. A connection
// whose peer does not prove what the credentials demand, or refuses the proof of this process, ends with
// Unauthenticated.
std::unique_ptr<Transport> make_tcp_transport(TcpOptions options = TcpOptions(),
                                              std::shared_ptr<EventLoop> loop = nullptr);

}  // namespace gradwire::transport
