#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/transport/connection.h"

namespace gradwire::transport {

// One way of connecting processes: tcp, loopback, ... Every kind passes the suite in transport/conformance.h.
// Thread-safe. The destructor calls shutdown().
class Transport {
 public:
  // Chooses the listener of a connection that comes in; nullptr refuses it.
  using AcceptHandler =
      std::function<std::shared_ptr<ConnectionListener>(const std::shared_ptr<Connection>&)>;

  virtual ~Transport() = default;

  // "tcp", ...
  virtual std::string name() const = 0;

  // Starts to accept connections and returns the address under which others, on other hosts too, reach this
  // process. At most once. Errors: Unavailable with the cause; FailedPrecondition the second time.
  virtual absl::StatusOr<std::string> listen(AcceptHandler on_accept) = 0;

  // Begins to connect and returns at once. When the other end does not answer within `timeout`, or refuses,
  // the listener's on_closed says so. InvalidArgument for what is no address.
  virtual absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                              std::shared_ptr<ConnectionListener> listener,
                                                              absl::Duration timeout) = 0;

  // Whether connecting to `address` can be worth trying: false for one that this kind knows to be elsewhere.
  virtual bool may_reach(const std::string& address) const { return true; }

  // Closes every connection (on_closed comes for each before this returns, with Cancelled where no close()
  // came before) and joins the threads; idempotent. A flush that is under way is completed within its time.
  // Not from a listener.
  virtual void shutdown() = 0;
};

}  // namespace gradwire::transport
