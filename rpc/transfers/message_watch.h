#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/transfers/transfer_name.h"
#include "gradwire/rpc/transfers/transfer_watch.h"
#include "gradwire/transport/connection.h"

namespace gradwire::rpc {

// Where a message is on its way.
struct MessageRoute {
  const std::string& worker;  // The name of the worker at the other end.
  uint64_t link = 0;          // The number of the link.
  uint64_t bytes = 0;         // The size of the message.
};

// How a message is sent.
struct Sending {
  // Returns how many of the bytes up to the end of the message are unsent; nullopt if the link has ended.
  std::function<std::optional<uint64_t>()> unsent;
  // Connection::counts_whole_buffers().
  bool whole_buffers = false;
};

// Has a message watched that was just sent. `answered`: the request that a Response answers; nullptr if it is
// not known. `sending`: how it is sent. Does nothing if none of its bytes is unsent.
void watch_sending(TransferWatch& watch, const MessageRoute& route, const proto::Envelope& envelope,
                   const proto::Request* answered, Sending sending);

// The connection on which a message arrives, and how many of its bytes have arrived.
struct ArrivingOn {
  std::weak_ptr<transport::Connection> connection;
  uint64_t arrived = 0;
};

// Has a message watched that begins to arrive. `header`: its serialised Envelope; one that is malformed is
// ignored here. `callee_of`: the name of what this worker has called, by the id of the call; "" if it is not
// known. The caller must report the end of the message, or of the link, to `watch`.
void watch_receiving(TransferWatch& watch, const MessageRoute& route, const std::string& header,
                     ArrivingOn arriving, absl::FunctionRef<std::string(uint64_t)> callee_of);

}  // namespace gradwire::rpc
