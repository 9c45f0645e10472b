#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/transport/connection.h"

namespace gradwire::transport {

// A way of connecting processes: tcp, loopback, ... Each kind passes the suite in transport/conformance.h.
// Thread-safe. The destructor calls shutdown().
class Transport {
 public:
  // Returns the listener of an incoming connection; nullptr refuses the connection.
  using AcceptHandler =
      std::function<std::shared_ptr<ConnectionListener>(const std::shared_ptr<Connection>&)>;

  virtual ~Transport() = default;

  // The name of the kind: "tcp", ...
  virtual std::string name() const = 0;

  // Starts to accept connections and returns the address under which other processes, also on other hosts,
  // reach this one. May be called once. Errors: Unavailable with the cause; FailedPrecondition for a second
  // call.
  virtual absl::StatusOr<std::string> listen(AcceptHandler on_accept) = 0;

  // Begins to connect and returns at once; never blocks, also if a host name must be looked up. If the peer
  // does not answer within `timeout`, or refuses, or its name is not found, on_closed() of the listener
  // reports it. InvalidArgument for a malformed address.
  virtual absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                              std::shared_ptr<ConnectionListener> listener,
                                                              absl::Duration timeout) = 0;

  // Whether a connection to `address` may succeed: false for an address that this kind knows to be
  // unreachable from here.
  virtual bool may_reach(const std::string& address) const { return true; }

  // Closes all connections and joins the threads. on_closed() is called for each connection before this
  // returns, with Cancelled unless close() was called before. A flush in progress is completed within its
  // time. Idempotent. Must not be called from a listener.
  virtual void shutdown() = 0;
};

}  // namespace gradwire::transport
