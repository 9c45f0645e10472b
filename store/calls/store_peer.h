#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/proto/store.pb.h"

namespace gradwire::store {

// The client at the other end of a session of a TcpStore's server, in one of the protocols that the server
// speaks. Used only on the thread that drives the server's loop.
class StorePeer {
 public:
  virtual ~StorePeer() = default;

  // Sends an answer. Errors end the connection, which is reported later.
  virtual void send_in_loop(const proto::Response& response) = 0;
  // Closes the connection after the answers have been sent or `flush` is over. The end is reported later, not
  // inside this call.
  virtual void close_in_loop(const absl::Status& reason, absl::Duration flush) = 0;
  // Size of the answers that have not been sent.
  virtual std::size_t unsent_bytes() const = 0;
  // The peer's address, for messages.
  virtual std::string address() const = 0;
};

}  // namespace gradwire::store
